/*
 * The compute modes. They are not in the state, because only tests change the state, but programs can change compute
 * modes. A table before the memory limits in the library file has one byte per GPU, indexed by minor number. All
 * containers share this file, but not the device nodes.
 */
#include "../limits.h"
#include "nvsim.h"

#include <unistd.h>

enum { MODES_SIZE = 1024 };

static off_t offset(const struct view *v) { return SLOT_SIZE + LIMITS_SIZE + MODES_SIZE - v->gpu->minor; }

NVML_API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	CALL(GPU, device);
	REQUIRE(mode == NVML_COMPUTEMODE_DEFAULT || mode == NVML_COMPUTEMODE_PROHIBITED || mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
	unsigned char value = mode;
	return !geteuid() && library_write(&value, 1, offset(&v)) ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	CALL(GPU, device);
	REQUIRE(mode);
	unsigned char value;
	if (!library_read(&value, 1, offset(&v)))
		return NVML_ERROR_UNKNOWN;
	*mode = value;
	return NVML_SUCCESS;
}
