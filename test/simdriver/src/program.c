/* Stub of the driver's programs that are not simulated. It prints its name, and has no options. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argv[0];
	if (argc > 1) {
		fprintf(stderr, "%s: unrecognized option '%s'\n", name, argv[1]);
		return 1;
	}
	printf("%s: simulated NVIDIA driver\n", name);
	return 0;
}
