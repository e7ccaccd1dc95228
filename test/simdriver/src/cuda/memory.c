/* Memory of a device, within the limits of cgroups. */
#define _GNU_SOURCE
#include "../limits.h"
#include "cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

static struct usage of_devices[MAX_DEVICES], of_limits[MAX_LIMITS];

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
	int device = context_device();
	if (device < 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (mps_check() != CUDA_SUCCESS)
		return mps_check();
	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	char gpu[96];
	size_t total;
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
