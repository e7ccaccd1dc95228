/*
 * Settings that programs can change. The driver keeps them until it is unloaded, so they are not in the state, which only
 * tests change: the memory limit of a cgroup is an extended attribute of its directory, and disappears with it, and the
 * compute mode one of the device node.
 */
#include "nvsim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

/* The first driver with memory limits. */
enum { LIMITS_SINCE = 615 };

static const unsigned long long UNLIMITED = ~0ULL;

/* The reason that limits cannot be set or read; NVML_SUCCESS if there is none. */
static nvmlReturn_t limits_refused(const struct view *v)
{
	if (atoi(v->state->driver.module) < LIMITS_SINCE)
		return NVML_ERROR_FUNCTION_NOT_FOUND; /* as after dlsym: the symbol is always exported here */
	return v->gpu->mig > 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static void limit_name(char out[2 * TEXT_LEN], const struct view *v)
{
	snprintf(out, 2 * TEXT_LEN, "user.nvsim.limit.%s", v->gpu->uuid);
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	CALL(GPU, device);
	nvmlReturn_t ret = limits_refused(&v);
	if (ret != NVML_SUCCESS)
		return ret;
	REQUIRE(limits && limits->nameSpace && limits->softLimit <= limits->hardLimit);
	REQUIRE(limits->hardLimit == UNLIMITED || limits->hardLimit <= (unsigned long long)v.gpu->memory);
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	if (*call_answer(&v, __func__, ""))
		return NVML_SUCCESS;
	char name[2 * TEXT_LEN], value[64];
	limit_name(name, &v);
	int dir = open(limits->nameSpace, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	int n = snprintf(value, sizeof value, "%llu %llu", limits->softLimit, limits->hardLimit), failed;
	if (limits->hardLimit == UNLIMITED && !limits->softLimit)
		failed = fremovexattr(dir, name) && errno != ENODATA;
	else
		failed = fsetxattr(dir, name, value, n, 0);
	close(dir);
	return failed ? NVML_ERROR_OPERATING_SYSTEM : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	CALL(GPU, device);
	nvmlReturn_t ret = limits_refused(&v);
	if (ret != NVML_SUCCESS)
		return ret;
	REQUIRE(limits && limits->nameSpace);
	char name[2 * TEXT_LEN], value[64] = "";
	limit_name(name, &v);
	int dir = open(limits->nameSpace, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	ssize_t n = fgetxattr(dir, name, value, sizeof value - 1);
	close(dir);
	limits->softLimit = 0;
	limits->hardLimit = UNLIMITED;
	if (n > 0 && sscanf(value, "%llu %llu", &limits->softLimit, &limits->hardLimit) != 2)
		return NVML_ERROR_UNKNOWN;
	limits->currentUsed = 0; /* not simulated */
	return NVML_SUCCESS;
}

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
