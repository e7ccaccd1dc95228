/* Processes that use a GPU or MIG device: those that hold memory, and those in the
 * simulated state. */
#define _GNU_SOURCE
#include "nvsim.h"
#include "../memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct list {
	nvmlProcessInfo_t *infos;
	unsigned room, count; /* count: includes processes that do not fit */
};

static void append(struct list *l, const struct view *v, long long pid, long long memory)
{
	if (l->count++ < l->room)
		l->infos[l->count - 1] = (nvmlProcessInfo_t){
			.pid = pid,
			.usedGpuMemory = memory,
			.gpuInstanceId = v->mig ? v->mig->gi : NVML_NO_INSTANCE,
			.computeInstanceId = v->mig ? v->mig->ci : NVML_NO_INSTANCE,
		};
}

/* Appends the processes that hold memory of the device: those with a lock in its
 * region (see memory.h). */
static void append_holders(struct list *l, const struct view *v)
{
	struct stat st;
	char line[256];
	FILE *locks = fopen("/proc/locks", "re");
	if (!locks)
		return;
	long long region = memory_region(v->gpu->minor, v->mig ? v->mig->gi : -1, v->mig ? v->mig->ci : 0);
	bool known = fstat(state_fd(), &st) == 0;
	while (known && fgets(line, sizeof line, locks)) {
		long long pid, start, end;
		unsigned maj, min;
		unsigned long inode;
		/* "1: POSIX  ADVISORY  READ 27105 fe:00:9979674 0 12344" */
		if (sscanf(line, "%*d: POSIX %*s READ %lld %x:%x:%lu %lld %lld", &pid, &maj, &min, &inode, &start, &end) == 6 &&
		    pid > 0 && maj == major(st.st_dev) && min == minor(st.st_dev) && inode == st.st_ino &&
		    start >> REGION_BITS == region)
			append(l, v, pid, end - start + 1);
	}
	fclose(locks);
}

static const char *device_of(const struct view *v) { return v->mig ? v->mig->uuid : v->gpu->uuid; }

static nvmlReturn_t list_processes(const struct view *v, bool graphics, unsigned *count, nvmlProcessInfo_t *infos)
{
	REQUIRE(count && (infos || !*count));
	struct list l = {infos, *count, 0};
	if (!graphics)
		append_holders(&l, v);
	for (unsigned i = 0; i < v->state->nprocesses; i++) {
		const struct process *p = &v->state->processes[i];
		if (p->memory && (!graphics || p->graphics) && !strcmp(p->device, device_of(v)))
			append(&l, v, p->pid, p->memory);
	}
	*count = l.count;
	return l.count > l.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
							      nvmlProcessInfo_t *infos)
{
	CALL(GPU | MIG, device);
	return list_processes(&v, false, count, infos);
}
NVML_ALIAS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
							       nvmlProcessInfo_t *infos)
{
	CALL(GPU | MIG, device);
	return list_processes(&v, true, count, infos);
}
NVML_ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3);

/* The utilization of the processes of the state, each with a sample per call. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
						      unsigned *count, unsigned long long since)
{
	CALL(GPU, device);
	REQUIRE(count);
	if (v.gpu->mig > 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned room = samples ? *count : 0, found = 0;
	for (unsigned i = 0; i < v.state->nprocesses; i++) {
		const struct process *p = &v.state->processes[i];
		if (!p->util || strcmp(p->device, v.gpu->uuid))
			continue;
		if (found++ < room)
			samples[found - 1] = (nvmlProcessUtilizationSample_t){
				.pid = p->pid, .timeStamp = since + 1, .smUtil = p->util};
	}
	*count = found;
	return !found ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
