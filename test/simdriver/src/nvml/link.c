/* PCIe topology and NVLinks. */
#include "nvsim.h"

#include <string.h>

enum { INTERNAL = 0, SINGLE = 10, MULTIPLE = 20, HOSTBRIDGE = 30, NODE = 40, SYSTEM = 50 };

static unsigned common_ancestor(const struct gpu *a, const struct gpu *b)
{
	if (a == b)
		return INTERNAL;
	if (a->node != b->node)
		return SYSTEM;
	if (a->bridge != b->bridge)
		return NODE;
	if (a->root != b->root)
		return HOSTBRIDGE;
	return a->sw == b->sw ? SINGLE : MULTIPLE;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
							  unsigned *level)
{
	CALL(GPU, device1);
	REQUIRE(level);
	const struct gpu *first = v.gpu;
	nvmlReturn_t ret = call_resolve(&v, GPU, device2);
	if (ret == NVML_SUCCESS)
		*level = common_ancestor(first, v.gpu);
	return ret;
}

/* If *count is 0, returns only the count; otherwise fills up to *count GPUs. */
NVML_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
						       nvmlDevice_t *nearest)
{
	CALL(GPU, device);
	REQUIRE(count && (nearest || !*count));
	unsigned room = *count, found = 0;
	for (unsigned i = 0; i < session_count(); i++) {
		const struct gpu *other = state_gpu(v.state, session_gpu(i));
		if (!other || other == v.gpu || common_ancestor(v.gpu, other) != level)
			continue;
		if (found < room)
			nearest[found] = handle_of(GPU, other->uuid, -1, -1);
		found++;
	}
	*count = room && found > room ? room : found;
	return NVML_SUCCESS;
}

static const struct link *find_link(const struct view *v, unsigned index)
{
	for (unsigned i = 0; i < v->state->nlinks; i++) {
		const struct link *l = &v->state->links[i];
		if (l->index == index && !strcmp(l->gpu, v->gpu->uuid))
			return l;
	}
	return NULL;
}

/* Declares l, the link with this index, or returns an error. */
#define LINK(l, out) \
	REQUIRE(index < NVML_MAX_LINKS && out); \
	const struct link *l = find_link(&v, index); \
	if (!l) \
	return find_link(&v, 0) ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned index, unsigned *active)
{
	CALL(GPU, device);
	LINK(l, active);
	*active = l->active;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned index, unsigned *version)
{
	CALL(GPU, device);
	LINK(l, version);
	*version = l->version;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned index, unsigned *type)
{
	CALL(GPU, device);
	LINK(l, type);
	*type = l->type;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned index,
							  nvmlPciInfo_t *pci)
{
	CALL(GPU, device);
	LINK(l, pci);
	put_pci(pci, l->remote, 0, 0);
	return NVML_SUCCESS;
}

/* The struct of the first version ends before busId. */
NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned index, nvmlPciInfo_t *pci)
{
	CALL(GPU, device);
	LINK(l, pci);
	nvmlPciInfo_t whole;
	put_pci(&whole, l->remote, 0, 0);
	memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}
