/* GPU performance monitoring (GPM), on Hopper and later. The metrics between two samples
 * are the GPU's values in the later one. */
#include "nvsim.h"

#include <stdlib.h>

enum { HOPPER = 9 };

struct gpm_sample {
	unsigned long long taken; /* order of the samples; 0: never */
	struct gpu gpu;
};

static unsigned long long samples; /* guarded by the state's lock */

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	CALL(GPU, device);
	REQUIRE(support && support->version == 1);
	support->isSupportedDevice = v.gpu->arch >= HOPPER;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	CALL(SESSION, NULL);
	REQUIRE(sample);
	*sample = calloc(1, sizeof **sample);
	return *sample ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NVML_API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	CALL(SESSION, NULL);
	REQUIRE(sample);
	free(sample);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	CALL(GPU, device);
	REQUIRE(sample);
	if (v.gpu->arch < HOPPER || v.gpu->mig > 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*sample = (struct gpm_sample){++samples, *v.gpu};
	return NVML_SUCCESS;
}

static long long metric(const struct gpu *g, unsigned id)
{
	switch (id) {
	case 2 /* SM_UTIL */: return g->sm_active;
	case 3 /* SM_OCCUPANCY */: return g->occupancy;
	case 5 /* ANY_TENSOR_UTIL */: return g->tensor_active;
	case 10 /* DRAM_BW_UTIL */: return g->dram_active;
	case 20 /* PCIE_TX_PER_SEC */: return g->pcie_tx_rate;
	case 21 /* PCIE_RX_PER_SEC */: return g->pcie_rx_rate;
	case 60 /* NVLINK_TOTAL_RX_PER_SEC */: return g->nvlink_rx_rate;
	case 61 /* NVLINK_TOTAL_TX_PER_SEC */: return g->nvlink_tx_rate;
	}
	return -1;
}

NVML_API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
	CALL(SESSION, NULL);
	REQUIRE(get && get->version == 1 && get->sample1 && get->sample2);
	REQUIRE(get->sample1->taken && get->sample1->taken < get->sample2->taken);
	for (unsigned i = 0; i < get->numMetrics; i++) {
		long long value = metric(&get->sample2->gpu, get->metrics[i].metricId);
		get->metrics[i].value = value;
		get->metrics[i].nvmlReturn = value < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
	}
	return NVML_SUCCESS;
}
