/* MIG profiles of a product. */
#include "nvsim.h"

#include <stdio.h>

enum { GPU_INSTANCE_PROFILES = 18, COMPUTE_INSTANCE_PROFILES = 9 };

/* Finds the profile with an index. */
static nvmlReturn_t find(const struct view *v, unsigned index, const struct profile **out)
{
	REQUIRE(index < GPU_INSTANCE_PROFILES);
	*out = v->gpu->mig < 0 ? NULL : state_profile(v->state, v->gpu, index);
	return *out ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

#define COMMON(p) \
	.id = (p)->id, .sliceCount = (p)->slices, .instanceCount = (p)->instances, \
	.multiprocessorCount = (p)->sms, .copyEngineCount = (p)->copy, \
	.decoderCount = (p)->decoders, .encoderCount = (p)->encoders, \
	.jpegCount = (p)->jpegs, .ofaCount = (p)->ofas, .memorySizeMB = (p)->memory

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned index,
							  nvmlGpuInstanceProfileInfo_t *info)
{
	CALL(GPU, device);
	REQUIRE(info);
	const struct profile *p;
	nvmlReturn_t ret = find(&v, index, &p);
	if (ret == NVML_SUCCESS)
		*info = (nvmlGpuInstanceProfileInfo_t){COMMON(p)};
	return ret;
}

/* The version word selects one of two structs. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned index, void *info)
{
	CALL(GPU, device);
	REQUIRE(info);
	const struct profile *p;
	nvmlReturn_t ret = find(&v, index, &p);
	if (ret != NVML_SUCCESS)
		return ret;
	nvmlGpuInstanceProfileInfo_v2_t *v2 = info;
	nvmlGpuInstanceProfileInfo_v3_t *v3 = info;
	if (v2->version == NVML_STRUCT(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
		*v2 = (nvmlGpuInstanceProfileInfo_v2_t){.version = v2->version, COMMON(p)};
		snprintf(v2->name, sizeof v2->name, "MIG %s", p->name);
	} else if (v3->version == NVML_STRUCT(nvmlGpuInstanceProfileInfo_v3_t, 3)) {
		*v3 = (nvmlGpuInstanceProfileInfo_v3_t){.version = v3->version, COMMON(p)};
		snprintf(v3->name, sizeof v3->name, "MIG %s", p->name);
	} else {
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	}
	return NVML_SUCCESS;
}

/* Instances cannot be created through this library, so it has no placements for them. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile,
								    void *placements, unsigned *count)
{
	(void)profile, (void)placements;
	CALL(GPU, device);
	REQUIRE(count);
	return NVML_ERROR_NOT_SUPPORTED;
}

/* A compute instance has 1, 2, 3, 4 or all slices of its GPU instance, and shares
 * the engines of the GPU instance. */
static nvmlReturn_t compute_info(const struct view *v, unsigned index, unsigned engine,
				 nvmlComputeInstanceProfileInfo_t *info)
{
	static const long long slices_of[] = {1, 2, 3, 4, 7, 8, 6};
	const struct profile *p = state_profile(v->state, v->gpu, v->mig->profile);
	REQUIRE(index < COMPUTE_INSTANCE_PROFILES && engine == 0);
	if (!p || index >= sizeof slices_of / sizeof *slices_of || slices_of[index] > p->slices)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlComputeInstanceProfileInfo_t){
		.id = index,
		.sliceCount = slices_of[index],
		.instanceCount = p->slices / slices_of[index],
		.multiprocessorCount = p->sms * slices_of[index] / p->slices,
		.sharedCopyEngineCount = p->copy,
		.sharedDecoderCount = p->decoders,
		.sharedEncoderCount = p->encoders,
		.sharedJpegCount = p->jpegs,
		.sharedOfaCount = p->ofas,
	};
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance,
								   unsigned index, unsigned engine,
								   nvmlComputeInstanceProfileInfo_t *info)
{
	CALL(GPU_INSTANCE, instance);
	REQUIRE(info);
	return compute_info(&v, index, engine, info);
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance,
								    unsigned index, unsigned engine,
								    void *info)
{
	CALL(GPU_INSTANCE, instance);
	REQUIRE(info);
	nvmlComputeInstanceProfileInfo_v3_t *out = info;
	bool v2 = out->version == NVML_STRUCT(nvmlComputeInstanceProfileInfo_v2_t, 2);
	bool v3 = out->version == NVML_STRUCT(nvmlComputeInstanceProfileInfo_v3_t, 3);
	if (!v2 && !v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t ret = compute_info(&v, index, engine, &out->info);
	if (ret != NVML_SUCCESS)
		return ret;
	const struct profile *p = state_profile(v.state, v.gpu, v.mig->profile);
	char prefix[8] = "";
	if (out->info.sliceCount < p->slices)
		snprintf(prefix, sizeof prefix, "%uc.", out->info.sliceCount % 10);
	snprintf(out->name, sizeof out->name, "MIG %s%s", prefix, p->name);
	if (v3)
		out->capabilities = 0;
	return NVML_SUCCESS;
}
