/*
 * A program that calls NVML and libcuda on request: it reads calls from standard
 * input, one per line, and prints the return code and the output value of each.
 */
#include "../src/nvml/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

#define F(type, name, arguments) ((type(*) arguments)look_up(#name))

static void *look_up(const char *name)
{
	void *f = dlsym(library, name);
	if (!f) {
		printf("missing %s\n", name);
		exit(1);
	}
	return f;
}

static nvmlDevice_t devices[64], mig_device;
static nvmlEventSet_t set;
static char text[256];

static int handle(int i) { return F(int, nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))(i, &devices[i]); }

static int number_of(const char *name, nvmlDevice_t device)
{
	unsigned n = 0;
	int ret = ((int (*)(nvmlDevice_t, unsigned *))look_up(name))(device, &n);
	snprintf(text, sizeof text, "%u", n);
	return ret;
}

static int mig(int i, int index)
{
	int ret = F(int, nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned, nvmlDevice_t *))(devices[i], index, &mig_device);
	return ret ? ret : F(int, nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned))(mig_device, text, sizeof text);
}

static int recovery(int i)
{
	nvmlFieldValue_t value = {.fieldId = 230};
	int ret = F(int, nvmlDeviceGetFieldValues, (nvmlDevice_t, int, nvmlFieldValue_t *))(devices[i], 1, &value);
	snprintf(text, sizeof text, "%u", value.value.uiVal);
	return ret ? ret : (int)value.nvmlReturn;
}

static int wait_event(int timeout)
{
	nvmlEventData_t data;
	int ret = F(int, nvmlEventSetWait_v2, (nvmlEventSet_t, nvmlEventData_t *, unsigned))(set, &data, timeout);
	if (ret)
		return ret;
	char uuid[96] = "";
	F(int, nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))(data.device, uuid, sizeof uuid);
	snprintf(text, sizeof text, "xid=%llu", data.eventData);
	for (int i = 0; i < 64; i++)
		if (devices[i] && devices[i] == data.device)
			snprintf(text, sizeof text, "gpu=%d xid=%llu", i, data.eventData);
	return ret;
}

/* Calls cuInit and returns libcuda. */
static void *cuda_init(int *ret)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	*ret = driver ? ((int (*)(unsigned))dlsym(driver, "cuInit"))(0) : -1;
	return driver;
}

static int cuda(void)
{
	int ret, n = 0;
	void *driver = cuda_init(&ret);
	if (!driver)
		return -1;
	if (!ret)
		ret = ((int (*)(int *))dlsym(driver, "cuDeviceGetCount"))(&n);
	snprintf(text, sizeof text, "%d", n);
	for (int i = 0; i < n; i++) {
		unsigned char uuid[16];
		((int (*)(unsigned char *, int))dlsym(driver, "cuDeviceGetUuid_v2"))(uuid, i);
		snprintf(text + strlen(text), sizeof text - strlen(text), " %02x%02x%02x%02x", uuid[0], uuid[1], uuid[2], uuid[3]);
	}
	return ret;
}

/* Creates a context on a device of libcuda; the output value is the device's number of multiprocessors. */
static int context(int i)
{
	void *created, *driver;
	int ret, sms = 0;
	if (!(driver = cuda_init(&ret)) || ret)
		return ret;
	ret = ((int (*)(void **, unsigned, int))dlsym(driver, "cuCtxCreate_v2"))(&created, 0, i);
	if (!ret)
		ret = ((int (*)(int *, int, int))dlsym(driver, "cuDeviceGetAttribute"))(&sms, 16, i);
	snprintf(text, sizeof text, "%d", sms);
	return ret;
}

static int synchronize(void)
{
	int ret;
	void *driver = cuda_init(&ret);
	return ret ? ret : ((int (*)(void))dlsym(driver, "cuCtxSynchronize"))();
}

/* Allocates memory of the first device of libcuda. */
static int alloc(int mib)
{
	unsigned long long pointer;
	int ret = context(0);
	*text = 0;
	return ret ? ret : ((int (*)(unsigned long long *, size_t))dlsym(cuda_init(&ret), "cuMemAlloc_v2"))(&pointer, (size_t)mib << 20);
}

/* Limits the memory of the cgroup whose directory is in the environment variable CGROUP. */
static int limit(int i, int mib)
{
	nvmlSetMemoryLimits_v1_t limits = {.nameSpace = getenv("CGROUP"), .hardLimit = (unsigned long long)mib << 20};
	return F(int, nvmlDeviceSetMemoryLimits_v1, (nvmlDevice_t, nvmlSetMemoryLimits_v1_t *))(devices[i], &limits);
}

static int processes(nvmlDevice_t device)
{
	nvmlProcessInfo_t infos[8];
	unsigned n = 8;
	int ret = F(int, nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))(device, &n, infos);
	for (unsigned i = 0; !ret && i < n; i++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u:%llu", i ? " " : "", infos[i].pid, infos[i].usedGpuMemory >> 20);
	return ret;
}

static int call(const char *name, int a, int b)
{
	unsigned n = 0;
	int ret;
	if (!strcmp(name, "init"))
		return F(int, nvmlInit_v2, (void))();
	if (!strcmp(name, "shutdown"))
		return F(int, nvmlShutdown, (void))();
	if (!strcmp(name, "version"))
		return F(int, nvmlSystemGetDriverVersion, (char *, unsigned))(text, sizeof text);
	if (!strcmp(name, "count")) {
		ret = F(int, nvmlDeviceGetCount_v2, (unsigned *))(&n);
		snprintf(text, sizeof text, "%u", n);
		return ret;
	}
	if (!strcmp(name, "handle"))
		return handle(a);
	if (!strcmp(name, "uuid"))
		return F(int, nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))(devices[a], text, sizeof text);
	if (!strcmp(name, "minor"))
		return number_of("nvmlDeviceGetMinorNumber", devices[a]);
	if (!strcmp(name, "numa"))
		return number_of("nvmlDeviceGetNumaNodeId", devices[a]);
	if (!strcmp(name, "ancestor")) {
		ret = F(int, nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t, nvmlDevice_t, unsigned *))(devices[a], devices[b], &n);
		snprintf(text, sizeof text, "%u", n);
		return ret;
	}
	if (!strcmp(name, "link")) {
		nvmlPciInfo_t pci = {0};
		ret = F(int, nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t, unsigned, nvmlPciInfo_t *))(devices[a], b, &pci);
		snprintf(text, sizeof text, "%s", pci.busId);
		return ret;
	}
	if (!strcmp(name, "mig"))
		return mig(a, b);
	if (!strcmp(name, "recovery"))
		return recovery(a);
	if (!strcmp(name, "set"))
		return F(int, nvmlEventSetCreate, (nvmlEventSet_t *))(&set);
	if (!strcmp(name, "register"))
		return F(int, nvmlDeviceRegisterEvents, (nvmlDevice_t, unsigned long long, nvmlEventSet_t))(devices[a], 8, set);
	if (!strcmp(name, "wait"))
		return wait_event(a);
	if (!strcmp(name, "free"))
		return F(int, nvmlEventSetFree, (nvmlEventSet_t))(set);
	if (!strcmp(name, "mode"))
		return F(int, nvmlDeviceSetComputeMode, (nvmlDevice_t, int))(devices[a], b);
	if (!strcmp(name, "cuinit")) {
		cuda_init(&ret);
		return ret;
	}
	if (!strcmp(name, "context"))
		return context(a);
	if (!strcmp(name, "synchronize"))
		return synchronize();
	if (!strcmp(name, "limit"))
		return limit(a, b);
	if (!strcmp(name, "alloc"))
		return alloc(a);
	if (!strcmp(name, "processes"))
		return processes(devices[a]);
	if (!strcmp(name, "mig-processes")) {
		ret = mig(a, b);
		*text = 0;
		return ret ? ret : processes(mig_device);
	}
	if (!strcmp(name, "cuda"))
		return cuda();
	return -1;
}

int main(void)
{
	char line[256];
	library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_GLOBAL);
	if (!library) {
		puts(dlerror());
		return 1;
	}
	setlinebuf(stdout);
	while (fgets(line, sizeof line, stdin)) {
		char name[32] = "";
		int a = 0, b = 0;
		sscanf(line, "%31s %d %d", name, &a, &b);
		*text = 0;
		int ret = call(name, a, b);
		printf("%d %s\n", ret, ret ? "" : text);
	}
	return 0;
}
