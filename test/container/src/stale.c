/* The libcuda of an image: it returns CUDA_ERROR_STUB_LIBRARY from each function. */
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
