/* Memory, utilization, temperature, power, PCIe link, clocks, and addressing mode. */
#include "nvsim.h"

static nvmlMemory_t memory_of(const struct view *v)
{
	nvmlMemory_t m = {.total = v->gpu->memory, .used = v->gpu->used};
	if (v->mig) {
		const struct profile *p = state_profile(v->state, v->gpu, v->mig->profile);
		m.total = p ? (unsigned long long)p->memory << 20 : 0;
		m.used = v->mig->used;
	}
	m.free = m.total - m.used;
	return m;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	CALL(GPU | MIG, device);
	REQUIRE(memory);
	*memory = memory_of(&v);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	CALL(GPU | MIG, device);
	REQUIRE(memory);
	if (memory->version != NVML_STRUCT(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlMemory_t m = memory_of(&v);
	memory->total = m.total;
	memory->reserved = 0;
	memory->free = m.free;
	memory->used = m.used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
	CALL(GPU, device);
	REQUIRE(out);
	if (v.gpu->util < 0 || v.gpu->mig > 0)
		return NVML_ERROR_NOT_SUPPORTED;
	out->gpu = v.gpu->util;
	out->memory = v.gpu->util_memory;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
	CALL(GPU, device);
	REQUIRE(out && sensor == 0);
	if (v.gpu->temperature < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = v.gpu->temperature;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out)
{
	CALL(GPU, device);
	REQUIRE(out && out->sensorType == 0);
	if (out->version != NVML_STRUCT(nvmlTemperature_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (v.gpu->temperature < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	out->temperature = v.gpu->temperature;
	return NVML_SUCCESS;
}

/* Reports the utilization of the encoder or decoder. */
static nvmlReturn_t put_media(const struct view *v, long long percent, unsigned *out, unsigned *period)
{
	REQUIRE(out && period);
	if (percent < 0 || v->gpu->mig > 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*out = percent;
	*period = 167000; /* µs */
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period)
{
	CALL(GPU, device);
	return put_media(&v, v.gpu->encoder, percent, period);
}

NVML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period)
{
	CALL(GPU, device);
	return put_media(&v, v.gpu->decoder, percent, period);
}

GETTER(nvmlDeviceGetFanSpeed, unsigned, fan)
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, clocks_events)
NVML_ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);
GETTER(nvmlDeviceGetPowerUsage, unsigned, power)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, power_limit)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, power_limit)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, pcie_gen)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, pcie_width)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, pcie_gen)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, pcie_width)

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };

/* Reports a clock; its maximum is the same. */
static nvmlReturn_t put_clock(const struct view *v, unsigned type, unsigned *clock)
{
	REQUIRE(clock && type <= CLOCK_VIDEO);
	long long mhz = type == CLOCK_MEMORY ? v->gpu->clock_memory : v->gpu->clock;
	if (mhz < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*clock = mhz;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *clock)
{
	CALL(GPU, device);
	return put_clock(&v, type, clock);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *clock)
{
	CALL(GPU, device);
	return put_clock(&v, type, clock);
}

NVML_API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *mode)
{
	CALL(GPU, device);
	REQUIRE(mode);
	if (mode->version != NVML_STRUCT(nvmlDeviceAddressingMode_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (v.gpu->addressing < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	mode->value = v.gpu->addressing;
	return NVML_SUCCESS;
}
