/*
 * Allocates memory on the first GPU with libcuda, in two allocations whose sizes in MiB are the
 * arguments, prints the CUresult or the error of dlopen, and keeps the memory until it is killed.
 * After an error it exits with the CUresult.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *cuda;

static int call_init(void) { return ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0); }

static int call_context(void)
{
	void *context;
	return ((int (*)(void **, unsigned, int))dlsym(cuda, "cuCtxCreate_v2"))(&context, 0, 0);
}

static int call_allocate(const char *mib)
{
	unsigned long long pointer;
	return ((int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&pointer, strtoul(mib, NULL, 10) << 20);
}

int main(int argc, char **argv)
{
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda || argc != 3) {
		puts(cuda ? "usage: allocate MIB MIB" : dlerror());
		return 1;
	}
	int ret = call_init();
	if (!ret)
		ret = call_context();
	for (int i = 1; i < argc && !ret; i++)
		ret = call_allocate(argv[i]);
	printf("%d\n", ret);
	fflush(stdout);
	while (!ret)
		pause();
	return ret;
}
