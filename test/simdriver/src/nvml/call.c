/* Prologue and epilogue of NVML functions: handles, faults, and the driver's status. */
#include "nvsim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_HANDLES = 2048 };
static struct handle handles[MAX_HANDLES];
static unsigned nhandles; /* guarded by the state's lock */

struct handle *handle_of(enum kind kind, const char *uuid, long long gi, long long ci)
{
	for (unsigned i = 0; i < nhandles; i++) {
		struct handle *h = &handles[i];
		if (h->kind == kind && h->gi == gi && h->ci == ci && !strcmp(h->uuid, uuid))
			return h;
	}
	if (nhandles == MAX_HANDLES)
		abort();
	struct handle *h = &handles[nhandles++];
	h->kind = kind;
	h->gi = gi;
	h->ci = ci;
	snprintf(h->uuid, sizeof h->uuid, "%s", uuid);
	return h;
}

const struct handle *handle_check(const void *pointer)
{
	for (unsigned i = 0; i < nhandles; i++)
		if (pointer == &handles[i])
			return pointer;
	return NULL;
}

/* Resolves a handle to its GPU and MIG device; they are NULL if they have been removed. */
static void look_up(struct view *v, const void *pointer)
{
	const struct handle *h = v->handle = handle_check(pointer);
	v->gpu = NULL;
	v->mig = NULL;
	if (!h)
		return;
	if (h->kind == GPU) {
		v->gpu = state_gpu(v->state, h->uuid);
	} else if (h->kind == MIG) {
		v->mig = state_mig(v->state, h->uuid);
		v->gpu = v->mig ? state_gpu(v->state, v->mig->gpu) : NULL;
	} else {
		v->gpu = state_gpu(v->state, h->uuid);
		for (unsigned i = 0; i < v->state->nmigs && !v->mig; i++) {
			const struct mig *m = &v->state->migs[i];
			if (!strcmp(m->gpu, h->uuid) && m->gi == h->gi && (h->ci < 0 || m->ci == h->ci))
				v->mig = m;
		}
	}
}

static nvmlReturn_t validate(const struct view *v, int kinds)
{
	if (!v->handle || !(v->handle->kind & kinds))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (v->handle->kind != GPU && !v->mig)
		return NVML_ERROR_NOT_FOUND; /* repartitioned since */
	if (!v->gpu || v->gpu->lost > 0)
		return NVML_ERROR_GPU_IS_LOST;
	return NVML_SUCCESS;
}

nvmlReturn_t call_resolve(struct view *v, int kinds, const void *handle)
{
	look_up(v, handle);
	return validate(v, kinds);
}

/* The length of a function name without its version suffix: faults apply to all
 * versions of a function. */
static size_t stem(const char *func)
{
	size_t n = strlen(func);
	return n > 3 && func[n - 3] == '_' && func[n - 2] == 'v' ? n - 3 : n;
}

static const struct fault *find_fault(const struct view *v, const char *func, int scope)
{
	for (unsigned i = 0; i < v->state->nfaults; i++) {
		const struct fault *f = &v->state->faults[i];
		bool applies = *f->gpu ? (scope & OF_THE_GPU) && v->gpu && !strcmp(f->gpu, v->gpu->uuid)
				    : (scope & OF_ALL_GPUS);
		bool named = !*f->func || (stem(f->func) == stem(func) && !strncmp(f->func, func, stem(func)));
		if (applies && named)
			return f;
	}
	return NULL;
}

/* Sleeps, unlocked, while the state has a hang for this call. */
static bool hang(struct view *v, const char *func, int scope)
{
	const struct fault *f;
	const void *handle = v->handle;
	for (long long slept = 0; (f = find_fault(v, func, scope)) && slept < f->hang_ms; slept += 5) {
		state_unlock();
		nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
		v->state = state_lock();
		if (!v->state)
			return false;
		look_up(v, handle);
	}
	return true;
}

nvmlReturn_t call_fault(struct view *v, const char *func, int scope)
{
	if (!hang(v, func, scope))
		return NVML_ERROR_UNKNOWN;
	const struct fault *f = find_fault(v, func, scope);
	if (f && f->crash)
		abort();
	return f ? (nvmlReturn_t)f->ret : NVML_SUCCESS;
}

const char *call_answer(const struct view *v, const char *func, const char *truth)
{
	const struct fault *f = find_fault(v, func, OF_THE_GPU);
	return f && f->answers ? f->answer : truth;
}

static nvmlReturn_t driver_status(const struct state *s)
{
	if (!session_open())
		return NVML_ERROR_UNINITIALIZED;
	if (!*s->driver.module)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	bool same = !strcmp(s->driver.module, s->driver.library);
	return same ? NVML_SUCCESS : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

struct view call_begin(const char *func, struct counter **counter, int kinds, const void *handle)
{
	struct view v = {.ret = NVML_ERROR_UNKNOWN};
	calls_count(func, counter);
	v.state = state_lock();
	if (!v.state)
		return v;
	look_up(&v, handle);
	v.ret = call_fault(&v, func, OF_ALL_GPUS | OF_THE_GPU);
	if (v.ret == NVML_SUCCESS && kinds != ALWAYS)
		v.ret = driver_status(v.state);
	if (v.ret == NVML_SUCCESS && kinds != ALWAYS && kinds != SESSION)
		v.ret = validate(&v, kinds);
	return v;
}

void call_end(struct view *v)
{
	if (v->state)
		state_unlock();
}

nvmlReturn_t put_text(char *out, unsigned length, const char *text)
{
	REQUIRE(out);
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}
