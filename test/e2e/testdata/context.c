/*
 * Creates a CUDA context on the first GPU, and prints the CUresult and the number of the GPU's multiprocessors that the
 * program may use: "0 132". With the argument "hold" it keeps the context until it is killed, or until a CUDA call
 * fails, for example because the MPS server has ended. It then prints the CUresult of that call.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *cuda;

static int call_init(void) { return ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0); }

static int call_context(void)
{
	void *context;
	return ((int (*)(void **, unsigned, int))dlsym(cuda, "cuCtxCreate_v2"))(&context, 0, 0);
}

static int call_attribute(int *out, int attribute)
{
	return ((int (*)(int *, int, int))dlsym(cuda, "cuDeviceGetAttribute"))(out, attribute, 0);
}

static int call_synchronize(void) { return ((int (*)(void))dlsym(cuda, "cuCtxSynchronize"))(); }

int main(int argc, char **argv)
{
	enum { MULTIPROCESSOR_COUNT = 16 };
	int multiprocessors = 0;
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda)
		return 1;
	int ret = call_init();
	if (!ret)
		ret = call_context();
	if (!ret)
		ret = call_attribute(&multiprocessors, MULTIPROCESSOR_COUNT);
	printf("%d %d\n", ret, multiprocessors);
	fflush(stdout);
	if (ret || argc < 2 || strcmp(argv[1], "hold"))
		return ret != 0;
	while (!(ret = call_synchronize()))
		usleep(10000);
	printf("%d\n", ret);
	return 1;
}
