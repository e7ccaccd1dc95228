// Tells, from within a container, what the loader and the kernel let a program do there. One
// line for each argument: the argument, and "ok" or what failed and why.
//
//	probe cuda LIBRARY...          count the devices of CUDA: a number for "ok"
//	probe dlopen NAME...           load libraries
//	probe open PATH...             open device nodes for reading and writing
//	probe write PATH...            open files for writing
//	probe node MAJOR:MINOR...      make a device node and open it
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void opened(const char *path, int flags)
{
	int fd = open(path, flags);
	if (fd < 0) {
		printf("open %s\n", strerrorname_np(errno));
		return;
	}
	puts("ok");
	close(fd);
}

static void node(const char *numbers)
{
	/* Only root may write to /dev, and /dev/shm takes no device nodes for it to open. */
	const char *path = geteuid() == 0 ? "/dev/probe" : "/dev/shm/probe";
	unsigned major, minor;
	if (sscanf(numbers, "%u:%u", &major, &minor) != 2) {
		puts("not MAJOR:MINOR");
		return;
	}
	if (mknod(path, S_IFCHR | 0666, makedev(major, minor)) != 0) {
		printf("mknod %s\n", strerrorname_np(errno));
		return;
	}
	opened(path, O_RDWR);
	unlink(path);
}

static void cuda(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);
	if (!library) {
		puts(dlerror());
		return;
	}
	int (*init)(unsigned) = dlsym(library, "cuInit");
	int (*count)(int *) = dlsym(library, "cuDeviceGetCount");
	int devices = 0, result = init(0);
	if (result == 0)
		result = count(&devices);
	if (result != 0)
		printf("CUDA error %d\n", result);
	else
		printf("%d\n", devices);
}

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";
	for (int i = 2; i < argc; i++) {
		printf("%s ", argv[i]);
		if (strcmp(verb, "dlopen") == 0)
			puts(dlopen(argv[i], RTLD_NOW) ? "ok" : dlerror());
		else if (strcmp(verb, "cuda") == 0)
			cuda(argv[i]);
		else if (strcmp(verb, "open") == 0)
			opened(argv[i], O_RDWR);
		else if (strcmp(verb, "write") == 0)
			opened(argv[i], O_WRONLY);
		else if (strcmp(verb, "node") == 0)
			node(argv[i]);
		else
			return 2;
	}
	return 0;
}
