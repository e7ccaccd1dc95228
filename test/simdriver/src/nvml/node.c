/* Visibility of GPUs and MIG devices, which depends on access to device nodes. */
#define _GNU_SOURCE
#include "nvsim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *device_dir(void)
{
	const char *dir = getenv("NVSIM_DEV");
	return dir && *dir ? dir : "/dev";
}

/* ENXIO: path, mode and device cgroup permit access, and only the kernel driver,
 * which the simulation lacks, is missing. */
static bool opens(int flags, const char *format, long long number)
{
	char name[64], path[4096];
	snprintf(name, sizeof name, format, number);
	snprintf(path, sizeof path, "%s/%s", device_dir(), name);
	int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno == ENXIO;
}

bool node_visible(const char *format, long long number) { return opens(O_RDWR, format, number); }

/* The minor number of a GPU instance's access node, the same as giMinor in mig.go.
 * Those of its compute instances follow. */
static long long cap_minor(long long gpu, long long gi) { return 3 + (gpu * 15 + gi) * 9; }

bool mig_visible(const struct gpu *g, const struct mig *m)
{
	long long access = cap_minor(g->minor, m->gi);
	return opens(O_RDONLY, "nvidia-caps/nvidia-cap%lld", access) &&
	       opens(O_RDONLY, "nvidia-caps/nvidia-cap%lld", access + 1 + m->ci);
}
