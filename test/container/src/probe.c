// Reports from inside a container what the loader and the kernel permit. It prints one line for each argument: the
// argument, and "ok" or the failed call and its error.
//
//	probe cuda LIBRARY...          count the devices of CUDA: a number instead of "ok"
//	probe nvml LIBRARY...          the same for NVML
//	probe dlopen NAME...           load libraries
//	probe same NAME...             load them, and compare each with the first
//	probe open PATH...             open device nodes for reading and writing
//	probe write PATH...            open files for writing
//	probe node MAJOR:MINOR...      make a device node and open it
//
// Some images contain no other program, so it can also replace these:
//
//	probe list DIRECTORY           ls
//	probe sleep                    sleep infinity
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* musl has no strerrorname_np. */
static const char *name(int error)
{
	switch (error) {
	case EACCES: return "EACCES";
	case ENOENT: return "ENOENT";
	case ENXIO: return "ENXIO";
	case EPERM: return "EPERM";
	case EROFS: return "EROFS";
	default: return strerror(error);
	}
}

static void try_open(const char *path, int flags)
{
	int fd = open(path, flags);
	if (fd < 0) {
		printf("open %s\n", name(errno));
		return;
	}
	puts("ok");
	close(fd);
}

static void node(const char *numbers)
{
	/*
	 * Only root can write to /dev. For other users, mknod would fail there even if the kernel permitted the device.
	 * Root does not use /dev/shm: it is mounted nodev, so device nodes in it cannot be opened.
	 */
	const char *path = geteuid() == 0 ? "/dev/probe" : "/dev/shm/probe";
	unsigned major, minor;
	if (sscanf(numbers, "%u:%u", &major, &minor) != 2) {
		puts("not MAJOR:MINOR");
		return;
	}
	if (mknod(path, S_IFCHR | 0666, makedev(major, minor)) != 0) {
		printf("mknod %s\n", name(errno));
		return;
	}
	try_open(path, O_RDWR);
	unlink(path);
}

static void count(const char *library, const char *init_name, const char *count_name)
{
	void *handle = dlopen(library, RTLD_NOW);
	if (!handle) {
		puts(dlerror());
		return;
	}
	/* nvmlInit takes no argument; the C calling convention permits an extra one. */
	int (*init)(unsigned) = dlsym(handle, init_name);
	int (*count)(int *) = dlsym(handle, count_name);
	if (!init || !count) {
		puts(dlerror());
		return;
	}
	int devices = 0, result = init(0);
	if (result == 0)
		result = count(&devices);
	if (result != 0)
		printf("error %d\n", result);
	else
		printf("%d\n", devices);
}

static int list(const char *path)
{
	DIR *directory = opendir(path);
	struct dirent *entry;
	if (!directory)
		return 1;
	while ((entry = readdir(directory)))
		if (entry->d_name[0] != '.')
			puts(entry->d_name);
	return closedir(directory);
}

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";
	if (strcmp(verb, "sleep") == 0)
		for (;;)
			pause();
	if (strcmp(verb, "list") == 0 && argc == 3)
		return list(argv[2]);
	void *first = strcmp(verb, "same") == 0 && argc > 2 ? dlopen(argv[2], RTLD_NOW) : NULL;
	for (int i = 2; i < argc; i++) {
		printf("%s ", argv[i]);
		if (strcmp(verb, "dlopen") == 0)
			puts(dlopen(argv[i], RTLD_NOW) ? "ok" : dlerror());
		else if (strcmp(verb, "same") == 0)
			puts(first && dlopen(argv[i], RTLD_NOW) == first ? "ok" : "another library");
		else if (strcmp(verb, "cuda") == 0)
			count(argv[i], "cuInit", "cuDeviceGetCount");
		else if (strcmp(verb, "nvml") == 0)
			count(argv[i], "nvmlInit_v2", "nvmlDeviceGetCount_v2");
		else if (strcmp(verb, "open") == 0)
			try_open(argv[i], O_RDWR);
		else if (strcmp(verb, "write") == 0)
			try_open(argv[i], O_WRONLY);
		else if (strcmp(verb, "node") == 0)
			node(argv[i]);
		else
			return 2;
	}
	return 0;
}
