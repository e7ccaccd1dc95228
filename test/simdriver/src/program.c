/* Stub of the driver's programs other than nvidia-smi. It prints its name. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;
	printf("%s: simulated NVIDIA driver\n", slash ? slash + 1 : argv[0]);
	return 0;
}
