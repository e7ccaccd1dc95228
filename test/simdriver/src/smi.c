/*
 * nvidia-smi. It loads NVML by SONAME, so that inside a container it verifies the
 * injected library.
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(nvmlReturn_t ret, const char *doing)
{
	if (ret == NVML_SUCCESS)
		return;
	printf("Failed to %s: %s\n", doing, nvml.nvmlErrorString(ret));
	exit(ret & 0xFF ? ret & 0xFF : 1);
}

static unsigned device_count(void)
{
	unsigned n = 0;
	check(nvml.nvmlDeviceGetCount_v2(&n), "count the GPUs");
	if (!n)
		printf("No devices were found\n");
	return n;
}

/* Returns the GPU with an index; prints the error and returns NULL on failure. */
static nvmlDevice_t device_at(unsigned index)
{
	nvmlDevice_t device;
	nvmlReturn_t ret = nvml.nvmlDeviceGetHandleByIndex_v2(index, &device);
	if (ret == NVML_SUCCESS)
		return device;
	printf("Unable to determine the device handle for GPU%u: %s\n", index, nvml.nvmlErrorString(ret));
	return NULL;
}

static void list_mig_devices(nvmlDevice_t device)
{
	unsigned max = 0, shown = 0;
	nvml.nvmlDeviceGetMaxMigDeviceCount(device, &max);
	for (unsigned i = 0; i < max; i++) {
		nvmlDevice_t mig;
		char name[192], uuid[96];
		if (nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) != NVML_SUCCESS)
			continue;
		check(nvml.nvmlDeviceGetName(mig, name, sizeof name), "get the name of a MIG device");
		check(nvml.nvmlDeviceGetUUID(mig, uuid, sizeof uuid), "get a UUID");
		const char *profile = strstr(name, "MIG ");
		printf("  MIG %-10s Device %2u: (UUID: %s)\n", profile ? profile + 4 : name, shown++, uuid);
	}
}

static int list(void)
{
	int failed = 0;
	for (unsigned i = 0, n = device_count(); i < n; i++) {
		char name[96], uuid[96];
		nvmlDevice_t device = device_at(i);
		if (!device) {
			failed = 1;
			continue;
		}
		check(nvml.nvmlDeviceGetName(device, name, sizeof name), "get the name of a GPU");
		check(nvml.nvmlDeviceGetUUID(device, uuid, sizeof uuid), "get a UUID");
		printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
		list_mig_devices(device);
	}
	return failed;
}

enum { COLUMNS = 16 };

struct format {
	int header, units;
};

static const char *unit_of(const char *column)
{
	if (!strncmp(column, "memory.", 7))
		return "MiB";
	if (!strncmp(column, "utilization.", 12))
		return "%";
	return !strcmp(column, "power.draw") ? "W" : NULL;
}

/* Formats a column of a GPU; returns 0 for an unknown column. */
static int cell(nvmlDevice_t device, unsigned index, const char *column, char *out, size_t size)
{
	nvmlMemory_t m = {0};
	nvmlUtilization_t u = {0};
	nvmlPciInfo_t pci = {0};
	unsigned number = 0, pending;
	nvmlReturn_t ret = NVML_SUCCESS;

	if (!strcmp(column, "index"))
		snprintf(out, size, "%u", index);
	else if (!strcmp(column, "uuid") || !strcmp(column, "gpu_uuid"))
		ret = nvml.nvmlDeviceGetUUID(device, out, size);
	else if (!strcmp(column, "name") || !strcmp(column, "gpu_name"))
		ret = nvml.nvmlDeviceGetName(device, out, size);
	else if (!strcmp(column, "driver_version"))
		ret = nvml.nvmlSystemGetDriverVersion(out, size);
	else if (!strcmp(column, "pci.bus_id") && !(ret = nvml.nvmlDeviceGetPciInfo_v3(device, &pci)))
		snprintf(out, size, "%s", pci.busId);
	else if (!strncmp(column, "memory.", 7) && !(ret = nvml.nvmlDeviceGetMemoryInfo(device, &m)))
		snprintf(out, size, "%llu", (!strcmp(column + 7, "total") ? m.total :
			 !strcmp(column + 7, "used") ? m.used : m.free) >> 20);
	else if (!strcmp(column, "utilization.gpu") && !(ret = nvml.nvmlDeviceGetUtilizationRates(device, &u)))
		snprintf(out, size, "%u", u.gpu);
	else if (!strcmp(column, "temperature.gpu") && !(ret = nvml.nvmlDeviceGetTemperature(device, 0, &number)))
		snprintf(out, size, "%u", number);
	else if (!strcmp(column, "power.draw") && !(ret = nvml.nvmlDeviceGetPowerUsage(device, &number)))
		snprintf(out, size, "%u.%02u", number / 1000, number % 1000 / 10);
	else if (!strcmp(column, "mig.mode.current") && !(ret = nvml.nvmlDeviceGetMigMode(device, &number, &pending)))
		snprintf(out, size, "%s", number ? "Enabled" : "Disabled");
	else if (ret == NVML_SUCCESS)
		return 0;
	if (ret != NVML_SUCCESS)
		snprintf(out, size, "[%s]", ret == NVML_ERROR_NOT_SUPPORTED ? "N/A" : nvml.nvmlErrorString(ret));
	return 1;
}

static void print_header(char **columns, int n, const struct format *f)
{
	for (int c = 0; c < n; c++) {
		const char *unit = f->units ? unit_of(columns[c]) : NULL;
		printf("%s%s", c ? ", " : "", columns[c]);
		if (unit)
			printf(" [%s]", unit);
	}
	putchar('\n');
}

static int query(char *list, const struct format *f)
{
	char *columns[COLUMNS], text[128];
	int n = 0, failed = 0;
	for (char *c = strtok(list, ","); c && n < COLUMNS; c = strtok(NULL, ","))
		columns[n++] = c + strspn(c, " ");
	if (f->header)
		print_header(columns, n, f);
	for (unsigned i = 0, count = device_count(); i < count; i++) {
		nvmlDevice_t device = device_at(i);
		if (!device) {
			failed = 1;
			continue;
		}
		for (int c = 0; c < n; c++) {
			const char *unit = f->units ? unit_of(columns[c]) : NULL;
			if (!cell(device, i, columns[c], text, sizeof text)) {
				printf("Field \"%s\" is not a valid field to query.\n", columns[c]);
				return 2;
			}
			printf("%s%s%s%s", c ? ", " : "", text, unit && *text != '[' ? " " : "",
			       unit && *text != '[' ? unit : "");
		}
		putchar('\n');
	}
	return failed;
}

static int table(void)
{
	char version[80] = "";
	int cuda = 0, failed = 0;
	nvml.nvmlSystemGetDriverVersion(version, sizeof version);
	nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
	printf("NVIDIA-SMI (simulated)   Driver Version: %s   CUDA Version: %d.%d\n\n",
	       version, cuda / 1000, cuda % 1000 / 10);
	printf("GPU  %-28s %-17s %5s  %17s  %5s\n", "Name", "Bus-Id", "Temp", "Memory-Usage", "Util");
	for (unsigned i = 0, n = device_count(); i < n; i++) {
		char name[128], bus[128], temp[128], used[128], total[128], util[128];
		nvmlDevice_t device = device_at(i);
		if (!device) {
			failed = 1;
			continue;
		}
		cell(device, i, "name", name, sizeof name);
		cell(device, i, "pci.bus_id", bus, sizeof bus);
		cell(device, i, "temperature.gpu", temp, sizeof temp);
		cell(device, i, "memory.used", used, sizeof used);
		cell(device, i, "memory.total", total, sizeof total);
		cell(device, i, "utilization.gpu", util, sizeof util);
		printf("%3u  %-28s %-17s %4sC  %5sMiB / %5sMiB  %4s%%\n", i, name, bus, temp, used, total, util);
	}
	return failed;
}

static int has_sys_admin(void)
{
	char line[256];
	unsigned long long effective = 0;
	FILE *status = fopen("/proc/self/status", "re");
	while (status && fgets(line, sizeof line, status))
		sscanf(line, "CapEff: %llx", &effective);
	if (status)
		fclose(status);
	return effective >> 21 & 1; /* CAP_SYS_ADMIN */
}

/* Sets the time slice of a GPU: writes it to a file that tests read. */
static int set_time_slice(const char *uuid, const char *value)
{
	enum { VOLTA = 5 };
	char path[192];
	nvmlDevice_t device;
	unsigned architecture = 0;
	check(nvml.nvmlDeviceGetHandleByUUID(uuid, &device), "find the GPU");
	check(nvml.nvmlDeviceGetArchitecture(device, &architecture), "get the architecture");
	nvmlReturn_t ret = architecture < VOLTA ? NVML_ERROR_NOT_SUPPORTED :
			   !has_sys_admin() ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
	check(ret, "set the time slice");
	snprintf(path, sizeof path, "/dev/.timeslice-%s", uuid);
	FILE *file = fopen(path, "we");
	if (!file || fprintf(file, "%s", value) < 0 || fclose(file)) {
		perror(path);
		return 1;
	}
	return 0;
}

static int compute_policy(int argc, char **argv)
{
	if (argc != 4 || strcmp(argv[0], "-i") || strcmp(argv[2], "--set-timeslice") || strlen(argv[3]) != 1 ||
	    !strchr("0123", *argv[3])) {
		printf("Invalid combination of input arguments.\n");
		return 2;
	}
	return set_time_slice(argv[1], argv[3]);
}

/* Sets the compute mode of all GPUs. */
static int set_compute_mode(const char *name)
{
	static const char *const names[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
	unsigned count = 0, mode = 0;
	while (mode < sizeof names / sizeof *names && strcmp(name, names[mode]))
		mode++;
	if (mode == sizeof names / sizeof *names) {
		printf("Invalid compute mode: %s\n", name);
		return 2;
	}
	check(nvml.nvmlDeviceGetCount_v2(&count), "count the GPUs");
	for (unsigned i = 0; i < count; i++) {
		nvmlDevice_t device;
		check(nvml.nvmlDeviceGetHandleByIndex_v2(i, &device), "find the GPU");
		check(nvml.nvmlDeviceSetComputeMode(device, mode), "set the compute mode");
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct format format = {1, 1};
	char *columns = NULL, *mode = NULL;
	int wants_list = 0;
	int is_policy = argc > 1 && !strcmp(argv[1], "compute-policy");
	for (int i = 1; i < argc && !is_policy; i++) {
		if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
			wants_list = 1;
		else if (!strncmp(argv[i], "--compute-mode=", 15))
			mode = argv[i] + 15;
		else if (!strncmp(argv[i], "--query-gpu=", 12))
			columns = argv[i] + 12;
		else if (!strncmp(argv[i], "--format=csv", 12))
			format = (struct format){!strstr(argv[i], "noheader"), !strstr(argv[i], "nounits")};
		else {
			printf("Invalid combination of input arguments.\n");
			return 2;
		}
	}
	const char *missing = nvml_load();
	if (missing) {
		printf("NVIDIA-SMI couldn't find %s in your system.\n", missing);
		return 12;
	}
	check(nvml.nvmlInit_v2(), "initialize NVML");
	int status = is_policy ? compute_policy(argc - 2, argv + 2) : mode ? set_compute_mode(mode) :
		     wants_list ? list() : columns ? query(columns, &format) : table();
	nvml.nvmlShutdown();
	return status;
}
