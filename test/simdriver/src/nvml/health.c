/* ECC errors, retired pages and remapped rows. */
#include "nvsim.h"

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
