/*
 * The part of NVML's ABI that the simulation implements. Other functions are
 * missing symbols, as in an old driver.
 */
#pragma once

#define NVML_API __attribute__((visibility("default")))

/* An older name of an exported function with the same arguments. */
#define NVML_ALIAS(name, target) \
	NVML_API __typeof__(target) name __attribute__((alias(#target)))

/* The version word of a versioned struct: its size, and the version in the top byte. */
#define NVML_STRUCT(type, version) ((unsigned)(sizeof(type) | (version) << 24))

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

/* Opaque to callers; defined in nvsim.h and event.c. */
typedef struct handle *nvmlDevice_t;
typedef struct handle *nvmlGpuInstance_t;
typedef struct handle *nvmlComputeInstance_t;
typedef struct event_set *nvmlEventSet_t;

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32]; /* only in GetPciInfo_v3 and GetNvLinkRemotePciInfo_v2 */
} nvmlPciInfo_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

/* Limits of a cgroup; nameSpace is the path of its directory. */
typedef struct {
	char *nameSpace;
	unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
	char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

typedef enum {
	NVML_COMPUTEMODE_DEFAULT = 0,
	NVML_COMPUTEMODE_PROHIBITED = 2,
	NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
} nvmlComputeMode_t;

typedef struct {
	unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
	unsigned version, sensorType;
	int temperature;
} nvmlTemperature_v1_t;

typedef struct {
	unsigned version, value;
} nvmlDeviceAddressingMode_v1_t;

typedef struct {
	nvmlDevice_t device;
	unsigned long long eventType, eventData;
	unsigned gpuInstanceId, computeInstanceId; /* only in EventSetWait_v2 */
} nvmlEventData_t;

typedef union {
	unsigned uiVal;
	unsigned long long ullVal;
} nvmlValue_t;

typedef struct {
	unsigned fieldId, scopeId;
	long long timestamp, latencyUsec;
	unsigned valueType;
	nvmlReturn_t nvmlReturn;
	nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
	unsigned pid;
	unsigned long long timeStamp;
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
	unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct gpm_sample *nvmlGpmSample_t; /* opaque to callers; defined in gpm.c */

typedef struct {
	unsigned metricId;
	nvmlReturn_t nvmlReturn;
	double value;
	struct {
		char *shortName, *longName, *unit;
	} metricInfo;
} nvmlGpmMetric_t;

typedef struct {
	unsigned version, numMetrics;
	nvmlGpmSample_t sample1, sample2;
	nvmlGpmMetric_t metrics[]; /* longer with each version of the header */
} nvmlGpmMetricsGet_t;

typedef struct {
	unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
		sharedEncoderCount, sharedJpegCount, sharedOfaCount,
		gpuInstanceSliceCount, computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
	unsigned char clusterUuid[16];
	unsigned status, cliqueId;
	unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
	unsigned version, environment, ccFeature, devToolsMode, multiGpuMode;
} nvmlSystemConfComputeSettings_v1_t;

typedef struct {
	unsigned environment, ccFeature, devToolsMode;
} nvmlConfComputeSystemState_t;

typedef struct {
	unsigned start, size;
} nvmlPlacement_t;

typedef struct {
	nvmlDevice_t device;
	unsigned id, profileId;
	nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
	nvmlDevice_t device;
	nvmlGpuInstance_t gpuInstance;
	unsigned id, profileId;
	nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
	unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount,
		copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
	unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount,
		copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
	unsigned version, id, sliceCount, instanceCount, multiprocessorCount,
		copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[96];
	unsigned capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
	unsigned id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount,
		sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

/* _v2 ends after the name, _v3 after the capabilities. */
typedef struct {
	unsigned version;
	nvmlComputeInstanceProfileInfo_t info;
	char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
	unsigned version;
	nvmlComputeInstanceProfileInfo_t info;
	char name[96];
	unsigned capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

enum { NVML_VALUE_UINT = 1, NVML_VALUE_ULONGLONG = 3 };
enum { NVML_EVENT_XID = 0x8 };
enum { NVML_NO_INSTANCE = 0xFFFFFFFF };
enum { NVML_MAX_LINKS = 36 };

/* Sizes that callers are compiled with. */
_Static_assert(sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlMemory_v2_t) == 40 &&
	       sizeof(nvmlEventData_t) == 32 && sizeof(nvmlFieldValue_t) == 40 &&
	       sizeof(nvmlProcessInfo_t) == 24 && sizeof(nvmlProcessUtilizationSample_t) == 32 &&
	       sizeof(nvmlGpmMetric_t) == 40 && sizeof(nvmlGpmMetricsGet_t) == 24 &&
	       sizeof(nvmlDeviceAttributes_t) == 40 && sizeof(nvmlGpuFabricInfo_t) == 28 && sizeof(nvmlGpuInstanceInfo_t) == 24 &&
	       sizeof(nvmlComputeInstanceInfo_t) == 32 && sizeof(nvmlGpuInstanceProfileInfo_t) == 48 &&
	       sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152 &&
	       sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152 &&
	       sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136 &&
	       sizeof(nvmlComputeInstanceProfileInfo_v3_t) == 140, "not NVML's ABI");
