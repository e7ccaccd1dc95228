/* Field values. */
#include "nvsim.h"

#include <string.h>

enum { ALL_LINKS = 0xFFFFFFFF };

/*
 * Fields by NVML_FI_DEV_… number. NARROW fields have 32 bits, PCIE_BYTES pcie_bits, all others 64. NVLINK and
 * NVLINK_SUM require NVLinks. NVLINK_SUM supports only the sum of all links.
 */
static const struct field_of_gpu {
	unsigned id;
	size_t offset;
	enum { NARROW, WIDE, PCIE_BYTES, NVLINK, NVLINK_SUM } kind;
} fields[] = {
	{1 /* ECC_CURRENT */, offsetof(struct gpu, ecc), NARROW},
	{2 /* ECC_PENDING */, offsetof(struct gpu, ecc), NARROW},
	{29 /* RETIRED_SBE */, offsetof(struct gpu, retired_sbe), NARROW},
	{30 /* RETIRED_DBE */, offsetof(struct gpu, retired_dbe), NARROW},
	{31 /* RETIRED_PENDING */, offsetof(struct gpu, retired_pending), NARROW},
	{38 /* NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL */, offsetof(struct gpu, nvlink_flit), NVLINK},
	{45 /* NVLINK_CRC_DATA_ERROR_COUNT_TOTAL */, offsetof(struct gpu, nvlink_data), NVLINK},
	{52 /* NVLINK_REPLAY_ERROR_COUNT_TOTAL */, offsetof(struct gpu, nvlink_replays), NVLINK},
	{59 /* NVLINK_RECOVERY_ERROR_COUNT_TOTAL */, offsetof(struct gpu, nvlink_recoveries), NVLINK},
	{74 /* PERF_POLICY_POWER */, offsetof(struct gpu, sw_power_ns), WIDE},
	{82 /* MEMORY_TEMP */, offsetof(struct gpu, memory_temperature), NARROW},
	{83 /* TOTAL_ENERGY_CONSUMPTION */, offsetof(struct gpu, energy), WIDE},
	{94 /* PCIE_REPLAY_COUNTER */, offsetof(struct gpu, pcie_replays), NARROW},
	{138 /* NVLINK_THROUGHPUT_DATA_TX */, offsetof(struct gpu, nvlink_tx), NVLINK_SUM},
	{139 /* NVLINK_THROUGHPUT_DATA_RX */, offsetof(struct gpu, nvlink_rx), NVLINK_SUM},
	{142 /* REMAPPED_COR */, offsetof(struct gpu, remapped_cor), NARROW},
	{143 /* REMAPPED_UNC */, offsetof(struct gpu, remapped_unc), NARROW},
	{144 /* REMAPPED_PENDING */, offsetof(struct gpu, remapped_pending), NARROW},
	{145 /* REMAPPED_FAILURE */, offsetof(struct gpu, remapped_failure), NARROW},
	{173 /* PCIE_COUNT_CORRECTABLE_ERRORS */, offsetof(struct gpu, pcie_correctable), NARROW},
	{179 /* PCIE_COUNT_NON_FATAL_ERROR */, offsetof(struct gpu, pcie_nonfatal), NARROW},
	{180 /* PCIE_COUNT_FATAL_ERROR */, offsetof(struct gpu, pcie_fatal), NARROW},
	{186 /* POWER_INSTANT */, offsetof(struct gpu, power), NARROW},
	{197 /* PCIE_COUNT_TX_BYTES */, offsetof(struct gpu, pcie_tx), PCIE_BYTES},
	{198 /* PCIE_COUNT_RX_BYTES */, offsetof(struct gpu, pcie_rx), PCIE_BYTES},
	{230 /* GET_GPU_RECOVERY_ACTION */, offsetof(struct gpu, recovery), NARROW},
	{269 /* CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN */, offsetof(struct gpu, sw_thermal_ns), WIDE},
	{270 /* CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN */, offsetof(struct gpu, hw_thermal_ns), WIDE},
	{271 /* CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN */, offsetof(struct gpu, hw_brake_ns), WIDE},
};

enum { FIELD_NVLINK_COUNT = 91 };

static long long count_links(const struct view *v)
{
	long long n = 0;
	for (unsigned i = 0; i < v->state->nlinks; i++)
		n += !strcmp(v->state->links[i].gpu, v->gpu->uuid);
	return n;
}

/* Returns the value of a field, -1 if it is not supported, and whether it has 64 bits. */
static long long number_of(const struct view *v, const nvmlFieldValue_t *value, bool *wide)
{
	*wide = false;
	if (value->fieldId == FIELD_NVLINK_COUNT)
		return count_links(v);
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		const struct field_of_gpu *f = &fields[i];
		if (f->id != value->fieldId)
			continue;
		if (f->kind >= NVLINK && !count_links(v))
			return -1;
		if (f->kind == NVLINK_SUM && value->scopeId != ALL_LINKS)
			return -1;
		*wide = f->kind == PCIE_BYTES ? v->gpu->pcie_bits == 64 : f->kind != NARROW;
		return *(const long long *)((const char *)v->gpu + f->offset);
	}
	return -1;
}

static void get_field(const struct view *v, nvmlFieldValue_t *value)
{
	bool wide;
	long long number = number_of(v, value, &wide);
	value->timestamp = value->latencyUsec = 0;
	value->valueType = wide ? NVML_VALUE_ULONGLONG : NVML_VALUE_UINT;
	value->value.ullVal = number < 0 ? 0 : wide ? number : (unsigned)number;
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
