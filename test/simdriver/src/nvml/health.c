/* ECC errors, retired pages, remapped rows, and field values. */
#include "nvsim.h"

#include <string.h>

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *mode, unsigned *pending)
{
	CALL(GPU, device);
	REQUIRE(mode && pending);
	if (v.gpu->ecc < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*mode = *pending = v.gpu->ecc;
	return NVML_SUCCESS;
}

enum { CORRECTED, UNCORRECTED };

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
						  unsigned long long *count)
{
	(void)counter; /* volatile and aggregate are the same here */
	CALL(GPU, device);
	REQUIRE(count && type <= UNCORRECTED);
	if (v.gpu->ecc < 1)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = type == CORRECTED ? v.gpu->ecc_corrected : v.gpu->ecc_uncorrected;
	return NVML_SUCCESS;
}

enum { SINGLE_BIT, DOUBLE_BIT };

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
						   unsigned long long *addresses, unsigned long long *times)
{
	CALL(GPU, device);
	REQUIRE(count && cause <= DOUBLE_BIT);
	if (v.gpu->retired_sbe < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned room = *count, have = cause == SINGLE_BIT ? v.gpu->retired_sbe : v.gpu->retired_dbe;
	*count = have;
	if (have > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; addresses && i < have; i++)
		addresses[i] = 0x100000ull + i * 0x1000;
	for (unsigned i = 0; times && i < have; i++)
		times[i] = 1700000000ull + i;
	return NVML_SUCCESS;
}

GETTER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, retired_pending)

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
						unsigned *uncorrected, unsigned *pending, unsigned *failure)
{
	CALL(GPU, device);
	REQUIRE(corrected && uncorrected && pending && failure);
	if (v.gpu->remapped_cor < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*corrected = v.gpu->remapped_cor;
	*uncorrected = v.gpu->remapped_unc;
	*pending = v.gpu->remapped_pending;
	*failure = v.gpu->remapped_failure;
	return NVML_SUCCESS;
}

/* Fields by NVML_FI_DEV_… number. */
static const struct field_of_gpu {
	unsigned id;
	size_t offset;
} fields[] = {
	{1 /* ECC_CURRENT */, offsetof(struct gpu, ecc)},
	{2 /* ECC_PENDING */, offsetof(struct gpu, ecc)},
	{29 /* RETIRED_SBE */, offsetof(struct gpu, retired_sbe)},
	{30 /* RETIRED_DBE */, offsetof(struct gpu, retired_dbe)},
	{31 /* RETIRED_PENDING */, offsetof(struct gpu, retired_pending)},
	{142 /* REMAPPED_COR */, offsetof(struct gpu, remapped_cor)},
	{143 /* REMAPPED_UNC */, offsetof(struct gpu, remapped_unc)},
	{144 /* REMAPPED_PENDING */, offsetof(struct gpu, remapped_pending)},
	{145 /* REMAPPED_FAILURE */, offsetof(struct gpu, remapped_failure)},
	{186 /* POWER_INSTANT */, offsetof(struct gpu, power)},
	{230 /* GET_GPU_RECOVERY_ACTION */, offsetof(struct gpu, recovery)},
};

enum { FIELD_NVLINK_COUNT = 91 };

static long long count_links(const struct view *v)
{
	long long n = 0;
	for (unsigned i = 0; i < v->state->nlinks; i++)
		n += !strcmp(v->state->links[i].gpu, v->gpu->uuid);
	return n;
}

static void get_field(const struct view *v, nvmlFieldValue_t *value)
{
	long long number = -1;
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (fields[i].id == value->fieldId)
			number = *(const long long *)((const char *)v->gpu + fields[i].offset);
	if (value->fieldId == FIELD_NVLINK_COUNT)
		number = count_links(v);
	value->timestamp = value->latencyUsec = 0;
	value->valueType = NVML_VALUE_UINT;
	value->value.ullVal = number < 0 ? 0 : number;
	value->nvmlReturn = number < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	CALL(GPU, device);
	REQUIRE(values && count > 0);
	for (int i = 0; i < count; i++)
		get_field(&v, &values[i]);
	return NVML_SUCCESS;
}
