/* How every call of the library begins, and what stands behind its handles. */
#pragma once
#include "nvml.h"
#include "state.h"

#include <stddef.h>

enum kind { GPU = 1, MIG = 2, GPU_INSTANCE = 4, COMPUTE_INSTANCE = 8 };

/* What a call without a handle needs: an initialised NVML, or nothing. */
enum { SESSION = 0, ALWAYS = 16 };

/* Names a thing of the driver; what it is like is in the state. Handles are
 * interned: equal things have the same address, and it stays valid until the
 * process ends. */
struct handle {
	enum kind kind;
	char uuid[TEXT_LEN]; /* of the GPU; for MIG of the MIG device */
	long long gi, ci;    /* -1 where it has none */
};

struct handle *handle_of(enum kind kind, const char *uuid, long long gi, long long ci);

/* NULL for a pointer that was never handed out. */
const struct handle *handle_check(const void *pointer);

/* What a call looks at. Unless ret is an error, the state is locked until the
 * view goes out of scope. */
struct view {
	nvmlReturn_t ret;
	const struct state *state; /* NULL: not locked */
	const struct handle *handle;
	const struct gpu *gpu;     /* the handle's GPU, or its parent */
	const struct mig *mig;     /* the first MIG device of the handle */
};

struct counter;

struct view call_begin(const char *func, struct counter **counter, int kinds, const void *handle);
void call_end(struct view *v);

/* Looks a further handle up, in the state of a call that has begun. */
nvmlReturn_t call_resolve(struct view *v, int kinds, const void *handle);

/* What the state wants of calls of func: that they hang, abort, return an
 * error. Obeys the faults of all GPUs, or those that name v's. */
enum scope { OF_ALL_GPUS = 1, OF_THE_GPU = 2 };
nvmlReturn_t call_fault(struct view *v, const char *func, int scope);

/* What a call of func answers about v's GPU: the truth, unless the state wants something else. */
const char *call_answer(const struct view *v, const char *func, const char *truth);

/* First line of every exported function: counts it, obeys the faults, and
 * leaves in v what it is about; returns at once when that fails. */
#define CALL(kinds, handle_arg) \
	static struct counter *counter_; \
	__attribute__((cleanup(call_end))) struct view v = \
		call_begin(__func__, &counter_, kinds, handle_arg); \
	if (v.ret != NVML_SUCCESS) \
	return v.ret

#define REQUIRE(condition) \
	if (!(condition)) \
	return NVML_ERROR_INVALID_ARGUMENT

/* An exported getter of one number; a negative one is not supported. */
#define GETTER(name, type, field) \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, type *out) \
	{ \
		CALL(GPU, device); \
		REQUIRE(out); \
		if (v.gpu->field < 0) \
			return NVML_ERROR_NOT_SUPPORTED; \
		*out = v.gpu->field; \
		return NVML_SUCCESS; \
	}

/* Adds 1 to the function's counter in the file that NVSIM_CALLS names. */
void calls_count(const char *func, struct counter **counter);

/* The GPUs that this process saw when it initialised NVML: a later one shows
 * only after the next nvmlInit, as with the real library. */
bool session_open(void);
unsigned session_count(void);
const char *session_gpu(unsigned index); /* its UUID */

/* Whether the node opens below the device directory, or would but for the
 * missing kernel driver. errno tells why not. */
bool node_visible(const char *format, long long number);
bool mig_visible(const struct gpu *g, const struct mig *m);

nvmlReturn_t put_text(char *out, unsigned length, const char *text);
void put_pci(nvmlPciInfo_t *out, const char *bus, long long device, long long subsystem);
