/* Prologue of calls, handles, and helpers. */
#pragma once
#include "nvml.h"
#include "state.h"

#include <stddef.h>
#include <sys/types.h>

enum kind { GPU = 1, MIG = 2, GPU_INSTANCE = 4, COMPUTE_INSTANCE = 8 };

/* Kinds for calls without a handle: SESSION requires nvmlInit and a loaded driver,
 * ALWAYS nothing. */
enum { SESSION = 0, ALWAYS = 16 };

/* Identifies an object of the driver; its properties are in the state. Handles are
 * interned: equal handles have the same address, which is valid until the process
 * exits. */
struct handle {
	enum kind kind;
	char uuid[TEXT_LEN]; /* of the GPU; for MIG, of the MIG device */
	long long gi, ci;    /* -1 where it has none */
};

struct handle *handle_of(enum kind kind, const char *uuid, long long gi, long long ci);

/* Returns NULL for a pointer that is not a handle. */
const struct handle *handle_check(const void *pointer);

/* The state and the handle of a call. The state is locked until the view goes out of
 * scope. */
struct view {
	nvmlReturn_t ret;
	const struct state *state; /* NULL: cannot be read, not locked */
	const struct handle *handle;
	const struct gpu *gpu;     /* the handle's GPU, or the GPU of its MIG device or instance */
	const struct mig *mig;     /* the handle's MIG device, or the first one in its instance; NULL for a GPU */
};

struct counter;

struct view call_begin(const char *func, struct counter **counter, int kinds, const void *handle);
void call_end(struct view *v);

/* Resolves another handle of the call. */
nvmlReturn_t call_resolve(struct view *v, int kinds, const void *handle);

/* Applies the fault of a call of func: it hangs, aborts, or returns an error. scope
 * selects faults without a GPU, faults of v's GPU, or both. */
enum scope { OF_ALL_GPUS = 1, OF_THE_GPU = 2 };
nvmlReturn_t call_fault(struct view *v, const char *func, int scope);

/* The output value of a call of func for v's GPU: truth, unless a fault overrides it. */
const char *call_answer(const struct view *v, const char *func, const char *truth);

/* Prologue of exported functions: counts the call, applies faults, and resolves the
 * handle into v; returns on failure. */
#define CALL(kinds, handle_arg) \
	static struct counter *counter_; \
	__attribute__((cleanup(call_end))) struct view v = \
		call_begin(__func__, &counter_, kinds, handle_arg); \
	if (v.ret != NVML_SUCCESS) \
	return v.ret

#define REQUIRE(condition) \
	if (!(condition)) \
	return NVML_ERROR_INVALID_ARGUMENT

/* An exported getter of a number; negative: not supported. */
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

/* Increments the function's counter in the file that NVSIM_CALLS names. */
void calls_count(const char *func, struct counter **counter);

/* The GPUs that were visible to this process at nvmlInit. GPUs that are added later
 * appear after nvmlShutdown and nvmlInit, as in NVML. */
bool session_open(void);
unsigned session_count(void);
const char *session_gpu(unsigned index); /* its UUID */

/* The directory of the device nodes: /dev, or in tests NVSIM_DEV. */
const char *device_dir(void);

/* Whether the device node can be opened, or fails only because there is no kernel
 * driver. Sets errno otherwise. */
bool node_visible(const char *format, long long number);
bool mig_visible(const struct gpu *g, const struct mig *m);

/* Reads or writes all bytes at an offset from the end of the library file. */
bool library_read(void *out, size_t length, off_t from_end);
bool library_write(const void *data, size_t length, off_t from_end);

nvmlReturn_t put_text(char *out, unsigned length, const char *text);
void put_pci(nvmlPciInfo_t *out, const char *bus, long long device, long long subsystem);
