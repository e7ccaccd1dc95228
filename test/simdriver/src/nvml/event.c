/*
 * Event sets. The state contains the latest events with their sequence numbers. A
 * set delivers each event once, if it is newer than the registration of its GPU.
 */
#include "nvsim.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

struct watch {
	char gpu[TEXT_LEN];
	unsigned long long types;
	long long since; /* only events with a higher sequence number are delivered */
};

struct event_set {
	struct watch watches[MAX_GPUS];
	unsigned count;
	int changes; /* inotify instance for the library file; -1: polling */
};

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	CALL(SESSION, NULL);
	REQUIRE(set);
	struct event_set *s = calloc(1, sizeof *s);
	if (!s)
		return NVML_ERROR_UNKNOWN;
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", state_fd());
	s->changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (s->changes >= 0 && inotify_add_watch(s->changes, path, IN_MODIFY) < 0) {
		close(s->changes);
		s->changes = -1;
	}
	*set = s;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	CALL(ALWAYS, NULL);
	REQUIRE(set);
	if (set->changes >= 0)
		close(set->changes);
	free(set);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	CALL(GPU, device);
	REQUIRE(types);
	/* GPUs without ECC: critical XIDs, and changes of the performance state and clocks. */
	*types = v.gpu->ecc > 0 ? 0xFFFF : NVML_EVENT_XID | 0x4 | 0x10;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
					       nvmlEventSet_t set)
{
	CALL(GPU, device);
	REQUIRE(set);
	if (set->count == MAX_GPUS)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	struct watch *w = &set->watches[set->count++];
	strcpy(w->gpu, v.gpu->uuid);
	w->types = types;
	for (unsigned i = 0; i < v.state->nevents; i++)
		if (v.state->events[i].seq > w->since)
			w->since = v.state->events[i].seq;
	return NVML_SUCCESS;
}

static bool watched(const struct watch *w, const struct event *e)
{
	return e->seq > w->since && (w->types & e->type) && !strcmp(w->gpu, e->gpu);
}

/* Returns and consumes the oldest pending event of the set. */
static const struct event *next_event(struct event_set *set, const struct state *s)
{
	const struct event *oldest = NULL;
	struct watch *by = NULL;
	for (unsigned i = 0; i < s->nevents; i++)
		for (unsigned j = 0; j < set->count; j++)
			if (watched(&set->watches[j], &s->events[i]) &&
			    (!oldest || s->events[i].seq < oldest->seq)) {
				oldest = &s->events[i];
				by = &set->watches[j];
			}
	if (oldest)
		by->since = oldest->seq;
	return oldest;
}

static bool any_lost(const struct event_set *set, const struct state *s)
{
	for (unsigned i = 0; i < set->count; i++) {
		const struct gpu *g = state_gpu(s, set->watches[i].gpu);
		if (!g || g->lost > 0)
			return true;
	}
	return false;
}

static long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

/* Sleeps until the state may have changed, at most for ms milliseconds. */
static void wait_for_change(const struct event_set *set, long long ms)
{
	char buffer[4096];
	struct pollfd p = {.fd = set->changes, .events = POLLIN};
	long long longest = set->changes >= 0 ? INT_MAX : 20;
	poll(&p, 1, (int)(ms < longest ? ms : longest));
	while (set->changes >= 0 && read(set->changes, buffer, sizeof buffer) > 0)
		;
}

static nvmlReturn_t next(struct event_set *set, const struct state *s, nvmlEventData_t *data)
{
	const struct event *e = next_event(set, s);
	if (!e)
		return any_lost(set, s) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
	data->device = handle_of(GPU, e->gpu, -1, -1);
	data->eventType = e->type;
	data->eventData = e->data;
	data->gpuInstanceId = e->gi < 0 ? NVML_NO_INSTANCE : (unsigned)e->gi;
	data->computeInstanceId = e->ci < 0 ? NVML_NO_INSTANCE : (unsigned)e->ci;
	return NVML_SUCCESS;
}

/* A fault may be injected during the wait, so each iteration checks it. */
static nvmlReturn_t poll_once(struct event_set *set, struct view *v, nvmlEventData_t *data)
{
	nvmlReturn_t ret = call_fault(v, "nvmlEventSetWait", OF_ALL_GPUS);
	if (ret == NVML_SUCCESS && !*v->state->driver.module)
		ret = NVML_ERROR_DRIVER_NOT_LOADED;
	return ret == NVML_SUCCESS ? next(set, v->state, data) : ret;
}

/* Waits at most timeout milliseconds for an event. As in NVML, it returns earlier only
 * with an event or an error. */
static nvmlReturn_t wait_event(struct event_set *set, struct view *v, nvmlEventData_t *data, unsigned timeout)
{
	long long end = now_ms() + timeout;
	for (;;) {
		nvmlReturn_t ret = poll_once(set, v, data);
		long long left = end - now_ms();
		if (ret != NVML_ERROR_TIMEOUT || left <= 0)
			return ret;
		state_unlock();
		wait_for_change(set, left);
		v->state = state_lock();
		if (!v->state)
			return NVML_ERROR_UNKNOWN;
	}
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout)
{
	CALL(SESSION, NULL);
	REQUIRE(set && data);
	return wait_event(set, &v, data, timeout);
}

/* The struct of the first version ends before the instance IDs. */
NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout)
{
	CALL(SESSION, NULL);
	REQUIRE(set && data);
	nvmlEventData_t whole;
	nvmlReturn_t ret = wait_event(set, &v, &whole, timeout);
	if (ret == NVML_SUCCESS)
		memcpy(data, &whole, offsetof(nvmlEventData_t, gpuInstanceId));
	return ret;
}
