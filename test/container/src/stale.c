/* A libcuda that an image has brought along: CUDA_ERROR_STUB_LIBRARY is all that it says. */
enum { CUDA_ERROR_STUB_LIBRARY = 34 };

int cuInit(unsigned flags)
{
	(void)flags;
	return CUDA_ERROR_STUB_LIBRARY;
}

int cuDeviceGetCount(int *count)
{
	(void)count;
	return CUDA_ERROR_STUB_LIBRARY;
}
