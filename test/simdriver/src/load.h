/* NVML as programs load it: with dlopen and dlsym. */
#pragma once
#include "nvml/nvml.h"

/* X(return type, name, arguments) */
#define NVML_FUNCTIONS(X) \
	X(nvmlReturn_t, nvmlInit_v2, (void)) \
	X(nvmlReturn_t, nvmlShutdown, (void)) \
	X(const char *, nvmlErrorString, (nvmlReturn_t)) \
	X(nvmlReturn_t, nvmlSystemGetDriverVersion, (char *, unsigned)) \
	X(nvmlReturn_t, nvmlSystemGetCudaDriverVersion_v2, (int *)) \
	X(nvmlReturn_t, nvmlDeviceGetCount_v2, (unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned)) \
	X(nvmlReturn_t, nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetMinorNumber, (nvmlDevice_t, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetArchitecture, (nvmlDevice_t, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned)) \
	X(nvmlReturn_t, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetTemperature, (nvmlDevice_t, unsigned, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned, nvmlDevice_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t, nvmlDevice_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetGpuInstanceId, (nvmlDevice_t, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetComputeInstanceId, (nvmlDevice_t, unsigned *)) \
	X(nvmlReturn_t, nvmlDeviceGetAttributes_v2, (nvmlDevice_t, nvmlDeviceAttributes_t *)) \
	X(nvmlReturn_t, nvmlDeviceGetComputeMode, (nvmlDevice_t, nvmlComputeMode_t *)) \
	X(nvmlReturn_t, nvmlDeviceSetComputeMode, (nvmlDevice_t, nvmlComputeMode_t)) \
	X(nvmlReturn_t, nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *)) \
	X(nvmlReturn_t, nvmlDeviceGetNumGpuCores, (nvmlDevice_t, unsigned *))

#define NVML_MEMBER(type, name, arguments) type(*name) arguments;
extern struct nvml {
	NVML_FUNCTIONS(NVML_MEMBER)
} nvml;

/* Returns the name of the missing library or symbol, or NULL. */
const char *nvml_load(void);
