/*
 * Contexts, which the compute mode of a GPU limits. A context is represented by the ordinal of its device plus 1. All
 * threads share the current context. Contexts end with the process.
 *
 * A process with a context holds a read lock on a byte of the device's context region in the library file: byte 0, or
 * for an MPS client, the byte at the PID of its server (see memory.h).
 */
#define _GNU_SOURCE
#include "../limits.h"
#include "cuda.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/file.h>

static size_t current;

int context_device(void) { return (int)current - 1; }

/*
 * Whether another process has a context on the device whose context region is at start. The clients of an MPS server
 * count as the same process.
 */
static int is_used(long long start)
{
	int server = mps_server();
	long long end = start + (1LL << REGION_BITS);
	if (!server)
		return locked(library(), start, end) > 0;
	return locked(library(), start, start + server) > 0 || locked(library(), start + server + 1, end) > 0;
}

/* Records that this process has a context, unless the compute mode forbids it. MIG devices have no compute mode. */
static CUresult occupy(nvmlDevice_t device)
{
	nvmlComputeMode_t mode;
	long long start = context_start(region_of(device));
	if (nvml.nvmlDeviceGetComputeMode(device, &mode) != NVML_SUCCESS)
		mode = NVML_COMPUTEMODE_DEFAULT;
	if (mode == NVML_COMPUTEMODE_PROHIBITED || (mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS && is_used(start)))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = start + mps_server(), .l_len = 1};
	return fcntl(library(), F_SETLK, &lock) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

NVML_API CUresult cuCtxCreate_v2(void **context, unsigned flags, int device)
{
	(void)flags;
	char uuid[96];
	CUresult ret = check(device);
	if (ret != CUDA_SUCCESS)
		return ret;
	if (flock(library(), LOCK_EX))
		return CUDA_ERROR_UNKNOWN;
	ret = occupy(devices[device]);
	flock(library(), LOCK_UN);
	if (ret != CUDA_SUCCESS)
		return ret;
	if (nvml.nvmlDeviceGetUUID(devices[device], uuid, sizeof uuid) == NVML_SUCCESS)
		mps_report_context(uuid);
	*context = (void *)(current = device + 1);
	return CUDA_SUCCESS;
}

NVML_API CUresult cuCtxGetDevice(int *device)
{
	*device = context_device();
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

NVML_API CUresult cuCtxSynchronize(void) { return current ? check(context_device()) : CUDA_ERROR_INVALID_CONTEXT; }
