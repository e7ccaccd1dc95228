/* MIG devices, GPU instances and compute instances. */
#include "nvsim.h"

#include <string.h>

enum { MAX_MIG_DEVICES = 7 };

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *mode, unsigned *pending)
{
	CALL(GPU, device);
	REQUIRE(mode && pending);
	if (v.gpu->mig < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*mode = v.gpu->mig;
	*pending = v.gpu->mig_pending;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	CALL(GPU, device);
	REQUIRE(count);
	*count = v.gpu->mig > 0 ? MAX_MIG_DEVICES : 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
							  nvmlDevice_t *out)
{
	CALL(GPU, device);
	REQUIRE(out);
	if (v.gpu->mig < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	REQUIRE(index < MAX_MIG_DEVICES);
	for (unsigned i = 0; i < v.state->nmigs; i++) {
		const struct mig *m = &v.state->migs[i];
		if (strcmp(m->gpu, v.gpu->uuid) || !mig_visible(v.gpu, m) || index--)
			continue;
		*out = handle_of(MIG, m->uuid, m->gi, m->ci);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
	CALL(GPU | MIG, device);
	REQUIRE(is);
	*is = v.mig != NULL;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	CALL(MIG, mig);
	REQUIRE(device);
	*device = handle_of(GPU, v.gpu->uuid, -1, -1);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	CALL(MIG, device);
	REQUIRE(id);
	*id = v.mig->gi;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	CALL(MIG, device);
	REQUIRE(id);
	*id = v.mig->ci;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	CALL(GPU | MIG, device);
	REQUIRE(out);
	const struct profile *p = v.mig ? state_profile(v.state, v.gpu, v.mig->profile) : NULL;
	if (!p)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = (nvmlDeviceAttributes_t){
		.multiprocessorCount = p->sms * v.mig->ci_slices / p->slices,
		.sharedCopyEngineCount = p->copy,
		.sharedDecoderCount = p->decoders,
		.sharedEncoderCount = p->encoders,
		.sharedJpegCount = p->jpegs,
		.sharedOfaCount = p->ofas,
		.gpuInstanceSliceCount = p->slices,
		.computeInstanceSliceCount = v.mig->ci_slices,
		.memorySizeMB = p->memory,
	};
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
	CALL(GPU, device);
	REQUIRE(out);
	if (v.gpu->mig < 1)
		return NVML_ERROR_NOT_SUPPORTED;
	struct handle *h = handle_of(GPU_INSTANCE, v.gpu->uuid, id, -1);
	nvmlReturn_t ret = call_resolve(&v, GPU_INSTANCE, h);
	if (ret == NVML_SUCCESS)
		*out = h;
	return ret;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id,
						nvmlGpuInstance_t *out, unsigned *count)
{
	CALL(GPU, device);
	REQUIRE(out && count);
	if (v.gpu->mig < 1)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	for (unsigned i = 0; i < v.state->nmigs; i++) {
		const struct mig *m = &v.state->migs[i];
		const struct profile *p = state_profile(v.state, v.gpu, m->profile);
		if (strcmp(m->gpu, v.gpu->uuid) || !p || p->id != profile_id)
			continue;
		struct handle *h = handle_of(GPU_INSTANCE, v.gpu->uuid, m->gi, -1);
		if (!*count || out[*count - 1] != h) /* compute instances are sorted by GPU instance */
			out[(*count)++] = h;
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
	CALL(GPU_INSTANCE, instance);
	REQUIRE(info);
	const struct profile *p = state_profile(v.state, v.gpu, v.mig->profile);
	*info = (nvmlGpuInstanceInfo_t){
		.device = handle_of(GPU, v.gpu->uuid, -1, -1),
		.id = v.mig->gi,
		.profileId = p ? p->id : 0,
		.placement = {v.mig->start, p ? p->size : 0},
	};
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
							    nvmlComputeInstance_t *out)
{
	CALL(GPU_INSTANCE, instance);
	REQUIRE(out);
	struct handle *h = handle_of(COMPUTE_INSTANCE, v.gpu->uuid, v.mig->gi, id);
	nvmlReturn_t ret = call_resolve(&v, COMPUTE_INSTANCE, h);
	if (ret == NVML_SUCCESS)
		*out = h;
	return ret;
}

/* Compute instance profiles are numbered like GPU instance profiles with the same
 * number of slices. */
static unsigned compute_profile(long long slices)
{
	static const unsigned by_slices[] = {0, 0, 1, 2, 3, 0, 6, 4, 5};
	return by_slices[slices % 9];
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
						    nvmlComputeInstanceInfo_t *info)
{
	CALL(COMPUTE_INSTANCE, instance);
	REQUIRE(info);
	*info = (nvmlComputeInstanceInfo_t){
		.device = handle_of(GPU, v.gpu->uuid, -1, -1),
		.gpuInstance = handle_of(GPU_INSTANCE, v.gpu->uuid, v.mig->gi, -1),
		.id = v.mig->ci,
		.profileId = compute_profile(v.mig->ci_slices),
		.placement = {v.mig->ci_start, v.mig->ci_slices},
	};
	return NVML_SUCCESS;
}
