/* Enumeration and identity of GPUs. */
#include "nvsim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	CALL(SESSION, NULL);
	REQUIRE(count);
	*count = session_count();
	return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

/* Returns the handle of a GPU by index, unless it is lost or has a fault. */
static nvmlReturn_t device_handle(struct view *v, unsigned index, const char *func, nvmlDevice_t *out)
{
	struct handle *h = handle_of(GPU, session_gpu(index), -1, -1);
	nvmlReturn_t ret = call_resolve(v, GPU, h);
	if (ret == NVML_SUCCESS)
		ret = call_fault(v, func, OF_THE_GPU);
	if (ret == NVML_SUCCESS)
		*out = h;
	return ret;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	CALL(SESSION, NULL);
	REQUIRE(device && index < session_count());
	return device_handle(&v, index, __func__, device);
}
NVML_ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

static bool in_session(const char *uuid, unsigned *index)
{
	for (*index = 0; *index < session_count(); ++*index)
		if (!strcmp(session_gpu(*index), uuid))
			return true;
	return false;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	CALL(SESSION, NULL);
	REQUIRE(uuid && device);
	unsigned index;
	if (in_session(uuid, &index))
		return device_handle(&v, index, __func__, device);
	const struct mig *m = state_mig(v.state, uuid);
	const struct gpu *g = m ? state_gpu(v.state, m->gpu) : NULL;
	if (!g || !in_session(g->uuid, &index) || !mig_visible(g, m))
		return NVML_ERROR_NOT_FOUND;
	*device = handle_of(MIG, uuid, m->gi, m->ci);
	return NVML_SUCCESS;
}

struct address {
	unsigned domain, bus, device;
};

static struct address address_of(const char *bus)
{
	struct address a = {0};
	sscanf(bus, "%x:%x:%x", &a.domain, &a.bus, &a.device);
	return a;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
	CALL(SESSION, NULL);
	REQUIRE(bus && device);
	struct address want = address_of(bus);
	for (unsigned i = 0; i < session_count(); i++) {
		const struct gpu *g = state_gpu(v.state, session_gpu(i));
		struct address have = address_of(g ? g->bus : "");
		if (g && !memcmp(&want, &have, sizeof want))
			return device_handle(&v, i, __func__, device);
	}
	return NVML_ERROR_NOT_FOUND;
}
NVML_ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	CALL(GPU | MIG, device);
	return put_text(uuid, length, v.mig ? v.handle->uuid : call_answer(&v, __func__, v.handle->uuid));
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	CALL(GPU, device);
	REQUIRE(index);
	return in_session(v.gpu->uuid, index) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	CALL(GPU | MIG, device);
	if (!v.mig)
		return put_text(name, length, v.gpu->name);
	const struct profile *p = state_profile(v.state, v.gpu, v.mig->profile);
	char text[3 * TEXT_LEN], prefix[8] = "";
	if (p && v.mig->ci_slices < p->slices)
		snprintf(prefix, sizeof prefix, "%dc.", (int)v.mig->ci_slices % 10);
	snprintf(text, sizeof text, "%s MIG %s%s", v.gpu->name, prefix, p ? p->name : "");
	return put_text(name, length, text);
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
	CALL(GPU, device);
	return *v.gpu->serial ? put_text(serial, length, v.gpu->serial) : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
	enum { IN_PROGRESS = 2, COMPLETED = 3 };
	CALL(GPU, device);
	REQUIRE(out);
	*out = (nvmlGpuFabricInfo_t){.state = *v.gpu->cluster ? COMPLETED : IN_PROGRESS};
	if (out->state == COMPLETED)
		out->cliqueId = v.gpu->clique;
	for (int i = 0; out->state == COMPLETED && i < 16; i++)
		sscanf(v.gpu->cluster + 2 * i, "%2hhx", &out->clusterUuid[i]);
	return NVML_SUCCESS;
}

void put_pci(nvmlPciInfo_t *out, const char *bus, long long device, long long subsystem)
{
	struct address a = address_of(bus);
	memset(out, 0, sizeof *out);
	out->domain = a.domain;
	out->bus = a.bus;
	out->device = a.device;
	out->pciDeviceId = device;
	out->pciSubSystemId = subsystem;
	snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0",
		 a.domain & 0xFFFF, a.bus & 0xFF, a.device & 0xFF);
	snprintf(out->busId, sizeof out->busId, "%.31s", bus);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	CALL(GPU, device);
	REQUIRE(pci);
	put_pci(pci, v.gpu->bus, v.gpu->device, v.gpu->subsystem);
	return NVML_SUCCESS;
}

/* The struct of the first versions ends before busId. */
NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	CALL(GPU, device);
	REQUIRE(pci);
	nvmlPciInfo_t whole;
	put_pci(&whole, v.gpu->bus, v.gpu->device, v.gpu->subsystem);
	memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}
NVML_ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2);

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	CALL(GPU | MIG, device);
	REQUIRE(major && minor);
	*major = v.gpu->major;
	*minor = v.gpu->cc_minor;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
	CALL(GPU, device);
	REQUIRE(minor);
	char number[24];
	snprintf(number, sizeof number, "%lld", v.gpu->minor);
	*minor = strtoul(call_answer(&v, __func__, number), NULL, 10);
	return NVML_SUCCESS;
}

GETTER(nvmlDeviceGetBrand, unsigned, brand)
GETTER(nvmlDeviceGetArchitecture, unsigned, arch)
GETTER(nvmlDeviceGetNumGpuCores, unsigned, cores)
GETTER(nvmlDeviceGetNumaNodeId, unsigned, numa)
GETTER(nvmlDeviceGetPersistenceMode, unsigned, persistence)
