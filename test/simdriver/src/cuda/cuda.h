/* What the files of libcuda share. */
#pragma once
#include "../load.h"
#include "../memory.h"

#include <stddef.h>

typedef enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
	CUDA_ERROR_MPS_RPC_FAILURE = 806,
	CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
	CUDA_ERROR_UNKNOWN = 999,
} CUresult;

enum { MAX_DEVICES = 64 };

/* The devices that this process may use, by CUDA ordinal. */
extern nvmlDevice_t devices[MAX_DEVICES];

/* CUDA_SUCCESS if cuInit has succeeded, the ordinal of the device is valid, and the MPS connection, if any, lasts. */
CUresult check(int device);

/* The ordinal of the current context's device; -1: no context. */
int context_device(void);

/* The region of a device in the library file; see memory.h. */
long long region_of(nvmlDevice_t device);

/* An open file descriptor of the library file of NVML. It stays open, because closing a
 * descriptor of the file would release the locks of this process. */
int library(void);

/* Connects to the MPS server of CUDA_MPS_PIPE_DIRECTORY, by default /tmp/nvidia-mps; CUDA_SUCCESS if there is none. */
CUresult mps_connect_server(void);

/* Makes this process the MPS server of devices, UUIDs separated by commas; empty: all. Call it before cuInit. */
void mps_become_server(const char *uuids);

/* CUDA_SUCCESS without MPS, or as long as the connection lasts. */
CUresult mps_check(void);

/* The PID of the MPS server; 0: none. */
int mps_server(void);

/* Whether the MPS server allows a device; true without MPS. */
int mps_allows(const char *uuid);

/* The number of multiprocessors that this process can use; all is the number of the device. */
int mps_multiprocessors(int all);

/* Sends the UUID of the device of a new context to the MPS control daemon, if this process is a client. */
void mps_report_context(const char *uuid);

NVML_API CUresult cuInit(unsigned flags);
NVML_API CUresult cuDeviceGetCount(int *out);
NVML_API CUresult cuCtxCreate_v2(void **context, unsigned flags, int device);
NVML_API CUresult cuDeviceTotalMem_v2(size_t *bytes, int device);
