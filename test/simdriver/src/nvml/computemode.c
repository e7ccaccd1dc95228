/*
 * The compute mode. It is not in the state, because only tests change the state, but programs can change the compute
 * mode. It is an extended attribute of the device node, so the driver keeps it until it is unloaded.
 */
#include "nvsim.h"

#include <errno.h>
#include <stdio.h>
#include <sys/xattr.h>

static void node_path(char out[4096], const struct view *v)
{
	snprintf(out, 4096, "%s/nvidia%lld", device_dir(), v->gpu->minor);
}

static const char MODE[] = "trusted.nvsim.compute-mode";

NVML_API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	CALL(GPU, device);
	REQUIRE(mode == NVML_COMPUTEMODE_DEFAULT || mode == NVML_COMPUTEMODE_PROHIBITED || mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
	char path[4096], value = '0' + mode;
	node_path(path, &v);
	return setxattr(path, MODE, &value, 1, 0) ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	CALL(GPU, device);
	REQUIRE(mode);
	char path[4096], value = '0' + NVML_COMPUTEMODE_DEFAULT;
	node_path(path, &v);
	if (getxattr(path, MODE, &value, 1) < 0 && errno != ENODATA)
		return NVML_ERROR_UNKNOWN;
	*mode = value - '0';
	return NVML_SUCCESS;
}
