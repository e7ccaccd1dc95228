/*
 * A minimal libcuda: it enumerates the devices that this process may use, and
 * allocates their memory, but cannot compute. As in CUDA, a GPU in MIG mode appears as
 * its first visible MIG device.
 */
#define _GNU_SOURCE
#include "limits.h"
#include "load.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

static nvmlDevice_t devices[64];
static int count = -1; /* before cuInit */

/* CUDA requires nvidia-uvm, NVML does not. */
static int uvm_opens(void)
{
	const char *dir = getenv("NVSIM_DEV");
	char path[4096];
	snprintf(path, sizeof path, "%s/nvidia-uvm", dir && *dir ? dir : "/dev");
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno == ENXIO;
}

/* The GPU or its first MIG device; NULL in MIG mode without a visible MIG device. */
static nvmlDevice_t usable(nvmlDevice_t device)
{
	unsigned mode, pending;
	nvmlDevice_t mig;
	if (nvml.nvmlDeviceGetMigMode(device, &mode, &pending) != NVML_SUCCESS || !mode)
		return device;
	return nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mig) == NVML_SUCCESS ? mig : NULL;
}

NVML_API CUresult cuInit(unsigned flags)
{
	unsigned n = 0;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (count >= 0)
		return CUDA_SUCCESS;
	if (nvml_load() || nvml.nvmlInit_v2() != NVML_SUCCESS || !uvm_opens())
		return CUDA_ERROR_UNKNOWN;
	nvml.nvmlDeviceGetCount_v2(&n);
	count = 0;
	for (unsigned i = 0; i < n && count < 64; i++) {
		nvmlDevice_t device;
		if (nvml.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS && (device = usable(device)))
			devices[count++] = device;
	}
	return count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

NVML_API CUresult cuDriverGetVersion(int *version)
{
	if (!version || nvml_load() || nvml.nvmlInit_v2() != NVML_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	nvmlReturn_t ret = nvml.nvmlSystemGetCudaDriverVersion_v2(version);
	nvml.nvmlShutdown();
	return ret == NVML_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

NVML_API CUresult cuDeviceGetCount(int *out)
{
	if (count < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	*out = count;
	return CUDA_SUCCESS;
}

static CUresult check(int device)
{
	if (count < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	return device >= 0 && device < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

NVML_API CUresult cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return check(ordinal);
}

NVML_API CUresult cuDeviceGetName(char *name, int length, int device)
{
	CUresult ret = check(device);
	if (ret == CUDA_SUCCESS && nvml.nvmlDeviceGetName(devices[device], name, length) != NVML_SUCCESS)
		ret = CUDA_ERROR_UNKNOWN;
	return ret;
}

NVML_API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	nvmlMemory_t memory;
	CUresult ret = check(device);
	if (ret == CUDA_SUCCESS && nvml.nvmlDeviceGetMemoryInfo(devices[device], &memory) != NVML_SUCCESS)
		ret = CUDA_ERROR_UNKNOWN;
	if (ret == CUDA_SUCCESS)
		*bytes = memory.total;
	return ret;
}

/* The 16 bytes of the UUID, which NVML formats in hexadecimal after "GPU-" or "MIG-". */
NVML_API CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], int device)
{
	char text[96];
	CUresult ret = check(device);
	if (ret != CUDA_SUCCESS)
		return ret;
	if (nvml.nvmlDeviceGetUUID(devices[device], text, sizeof text) != NVML_SUCCESS)
		return CUDA_ERROR_UNKNOWN;
	const char *digit = strchr(text, '-') + 1;
	for (int i = 0; i < 16; i++, digit += 2) {
		unsigned byte;
		digit += *digit == '-';
		sscanf(digit, "%2x", &byte);
		uuid[i] = byte;
	}
	return CUDA_SUCCESS;
}
NVML_ALIAS(cuDeviceGetUuid, cuDeviceGetUuid_v2);

/* A context is a device, numbered from 1. All threads share the current context. */
static size_t current;

NVML_API CUresult cuCtxCreate_v2(void **context, unsigned flags, int device)
{
	(void)flags;
	CUresult ret = check(device);
	if (ret == CUDA_SUCCESS)
		*context = (void *)(current = device + 1);
	return ret;
}

static long long region_of(nvmlDevice_t device)
{
	unsigned minor = 0, gi, ci;
	nvmlDevice_t gpu;
	if (nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &gpu) != NVML_SUCCESS) {
		nvml.nvmlDeviceGetMinorNumber(device, &minor);
		return memory_region(minor, -1, 0);
	}
	nvml.nvmlDeviceGetMinorNumber(gpu, &minor);
	nvml.nvmlDeviceGetGpuInstanceId(device, &gi);
	nvml.nvmlDeviceGetComputeInstanceId(device, &ci);
	return memory_region(minor, gi, ci);
}

/* An open file descriptor of the library file of NVML. It stays open, because closing a
 * descriptor of the file would release the locks of this process. */
static int library(void)
{
	static int fd = -1;
	Dl_info info;
	if (fd < 0 && dladdr((void *)nvml.nvmlInit_v2, &info))
		fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
	return fd;
}

/* The cgroup of this process: its path in the hierarchy of cgroup v2, or with v1, of the memory controller. The path is
 * "/" for a process in its own cgroup namespace. */
static void own_cgroup(char out[CGROUP_LEN])
{
	char line[512];
	FILE *file = fopen("/proc/self/cgroup", "re");
	strcpy(out, "/");
	while (file && fgets(line, sizeof line, file)) {
		char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path || strlen(path + 1) > CGROUP_LEN || !strcmp(path + 1, "/\n"))
			continue;
		if (path == controllers + 1 || !strncmp(controllers, ":memory:", 8))
			snprintf(out, CGROUP_LEN, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
	}
	if (file)
		fclose(file);
}

/* Whether a limit applies to a cgroup: it is the limit of the cgroup or of an ancestor. In a cgroup namespace,
 * ancestors are not visible, so only the cgroup's own limit is found, by the inode. */
static int applies(const struct limit *l, const char *gpu, const char *cgroup)
{
	struct stat st;
	size_t n = strlen(l->cgroup);
	if (strcmp(l->gpu, gpu))
		return 0;
	if (!strcmp(cgroup, "/"))
		return stat("/sys/fs/cgroup", &st) == 0 && st.st_ino == l->inode;
	return !strcmp(l->cgroup, "/") || (!strncmp(cgroup, l->cgroup, n) && (!cgroup[n] || cgroup[n] == '/'));
}

/* Memory of this process in a region. */
struct usage {
	size_t bytes;
	int place;
};

static struct usage of_devices[64], of_limits[MAX_LIMITS];

/* Whether the processes of a region may use this much more memory. */
static int fits(long long region, const struct usage *own, size_t bytes, unsigned long long total)
{
	return bytes <= total && own->bytes + locked_in(library(), region) <= total - bytes;
}

static long long start_of(long long region, int place)
{
	return (region << REGION_BITS) + ((long long)place << PROCESS_BITS);
}

static int charge(long long region, struct usage *own, size_t bytes)
{
	while (!own->bytes && own->place < PROCESSES - 1 &&
	       locked(library(), start_of(region, own->place), start_of(region, own->place + 1)))
		own->place++;
	struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = start_of(region, own->place),
			  .l_len = own->bytes + bytes};
	if (fcntl(library(), F_SETLK, &l))
		return -1;
	own->bytes += bytes;
	return 0;
}

/* Charges memory to a device of this size and to all limits that apply, or to none. */
static CUresult charge_all(int device, size_t total, const char *gpu, size_t bytes)
{
	static struct limit table[MAX_LIMITS];
	char cgroup[CGROUP_LEN];
	struct stat st;
	long long region = region_of(devices[device]);
	own_cgroup(cgroup);
	if (fstat(library(), &st) || pread(library(), table, LIMITS_SIZE, st.st_size - SLOT_SIZE - LIMITS_SIZE) != LIMITS_SIZE)
		return CUDA_ERROR_UNKNOWN;
	if (!fits(region, &of_devices[device], bytes, total))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < MAX_LIMITS; i++)
		if (applies(&table[i], gpu, cgroup) && !fits(LIMIT_REGIONS + i, &of_limits[i], bytes, table[i].hard))
			return CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < MAX_LIMITS; i++)
		if (applies(&table[i], gpu, cgroup) && charge(LIMIT_REGIONS + i, &of_limits[i], bytes))
			return CUDA_ERROR_UNKNOWN;
	return charge(region, &of_devices[device], bytes) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* The memory is not freed before the process ends. */
NVML_API CUresult cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	char gpu[96];
	size_t total;
	int device = current - 1;
	if (cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS ||
	    nvml.nvmlDeviceGetUUID(devices[device], gpu, sizeof gpu) != NVML_SUCCESS || flock(library(), LOCK_EX))
		return CUDA_ERROR_UNKNOWN;
	CUresult ret = charge_all(device, total, gpu, bytes);
	flock(library(), LOCK_UN);
	const struct usage *own = &of_devices[device];
	if (ret == CUDA_SUCCESS)
		*pointer = start_of(region_of(devices[device]), own->place) + own->bytes - bytes;
	return ret;
}
