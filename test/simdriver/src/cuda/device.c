/*
 * A minimal libcuda: it enumerates the devices that this process may use, and
 * allocates their memory, but cannot compute. As in CUDA, a GPU in MIG mode appears as
 * its first visible MIG device.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

nvmlDevice_t devices[MAX_DEVICES];
static int count = -1; /* before cuInit */

/* CUDA requires nvidia-uvm, NVML does not. For ENXIO, see node.c. */
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

static int is_allowed(nvmlDevice_t device)
{
	char uuid[96];
	return nvml.nvmlDeviceGetUUID(device, uuid, sizeof uuid) == NVML_SUCCESS && mps_allows(uuid);
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
	CUresult ret = mps_connect_server();
	if (ret != CUDA_SUCCESS)
		return ret;
	nvml.nvmlDeviceGetCount_v2(&n);
	count = 0;
	for (unsigned i = 0; i < n && count < MAX_DEVICES; i++) {
		nvmlDevice_t device;
		if (nvml.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS && (device = usable(device)) && is_allowed(device))
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

CUresult check(int device)
{
	if (count < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	return device >= 0 && device < count ? mps_check() : CUDA_ERROR_INVALID_DEVICE;
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

/* Multiprocessors (SMs) of a device. NVML reports only those of MIG devices. */
static int multiprocessors(nvmlDevice_t device)
{
	nvmlDeviceAttributes_t mig;
	unsigned cores = 0;
	int major = 0, minor = 0;
	if (nvml.nvmlDeviceGetAttributes_v2(device, &mig) == NVML_SUCCESS)
		return mig.multiprocessorCount;
	nvml.nvmlDeviceGetNumGpuCores(device, &cores);
	nvml.nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
	int is_dense = major == 7 || (minor == 0 && (major == 6 || major == 8)); /* 64 cores each */
	return cores / (is_dense ? 64 : 128);
}

enum { MULTIPROCESSOR_COUNT = 16 };

NVML_API CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
	CUresult ret = check(device);
	if (ret != CUDA_SUCCESS)
		return ret;
	if (attribute != MULTIPROCESSOR_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	*value = mps_multiprocessors(multiprocessors(devices[device]));
	return CUDA_SUCCESS;
}

long long region_of(nvmlDevice_t device)
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

int library(void)
{
	static int fd = -1;
	Dl_info info;
	if (fd < 0 && dladdr((void *)nvml.nvmlInit_v2, &info))
		fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
	return fd;
}
