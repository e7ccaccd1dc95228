/* Initialization, shutdown, and system queries. */
#include "nvsim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct {
	unsigned users, count;
	char gpus[MAX_GPUS][TEXT_LEN];
} session; /* guarded by the state's lock */

bool session_open(void) { return session.users > 0; }
unsigned session_count(void) { return session.count; }
const char *session_gpu(unsigned index) { return session.gpus[index]; }

static nvmlReturn_t session_start(const struct state *s)
{
	if (!*s->driver.module)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (!node_visible("nvidiactl", 0))
		return errno == ENOENT ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_UNKNOWN;
	if (strcmp(s->driver.module, s->driver.library))
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	if (session.users++)
		return NVML_SUCCESS;
	session.count = 0;
	for (unsigned i = 0; i < s->ngpus; i++)
		if (node_visible("nvidia%lld", s->gpus[i].minor))
			strcpy(session.gpus[session.count++], s->gpus[i].uuid);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	CALL(ALWAYS, NULL);
	return session_start(v.state);
}
NVML_ALIAS(nvmlInit, nvmlInit_v2);

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	CALL(ALWAYS, NULL);
	return session_start(v.state);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	CALL(ALWAYS, NULL);
	if (!session_open())
		return NVML_ERROR_UNINITIALIZED;
	session.users--;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	CALL(SESSION, NULL);
	return put_text(version, length, v.state->driver.module);
}

/* The NVML version is the CUDA major version and the driver version. */
NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	CALL(ALWAYS, NULL);
	char text[TEXT_LEN + 24];
	snprintf(text, sizeof text, "%lld.%s", v.state->driver.cuda / 1000, v.state->driver.library);
	return put_text(version, length, text);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	CALL(SESSION, NULL);
	REQUIRE(version);
	*version = v.state->driver.cuda;
	return NVML_SUCCESS;
}
NVML_ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

NVML_API nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_v1_t *settings)
{
	CALL(SESSION, NULL);
	REQUIRE(settings);
	if (settings->version != NVML_STRUCT(nvmlSystemConfComputeSettings_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	settings->environment = settings->devToolsMode = 0;
	settings->ccFeature = v.state->driver.confidential;
	settings->multiGpuMode = v.state->driver.protected_pcie;
	return NVML_SUCCESS;
}

/* Older drivers have only this function. */
NVML_API nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
	CALL(SESSION, NULL);
	REQUIRE(state);
	state->environment = state->devToolsMode = 0;
	state->ccFeature = v.state->driver.confidential;
	return NVML_SUCCESS;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	static struct counter *counter;
	calls_count(__func__, &counter);
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	default: return "Unknown Error";
	}
}
