#include "load.h"

#include <dlfcn.h>

struct nvml nvml;

const char *nvml_load(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!library)
		return "libnvidia-ml.so.1";
#define NVML_LOAD(type, name, arguments) \
	if (!(*(void **)&nvml.name = dlsym(library, #name))) \
		return #name;
	NVML_FUNCTIONS(NVML_LOAD)
	return (void *)0;
}
