/* What device nodes this process may open decides what it sees. */
#define _GNU_SOURCE
#include "nvsim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A tree of a test is not /dev: NVSIM_DEV names its directory. */
static const char *dev(void)
{
	const char *dir = getenv("NVSIM_DEV");
	return dir && *dir ? dir : "/dev";
}

/* ENXIO means that everything let us through to the kernel driver that the
 * simulation lacks: name, mode, and the container's device cgroup. */
static bool opens(int flags, const char *format, long long number)
{
	char name[64], path[4096];
	snprintf(name, sizeof name, format, number);
	snprintf(path, sizeof path, "%s/%s", dev(), name);
	int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0 || errno == ENXIO;
}

bool node_visible(const char *format, long long number) { return opens(O_RDWR, format, number); }

/* The driver numbers MIG capabilities by a fixed scheme: 15 GPU instances a
 * GPU, and for each an access node and those of 8 compute instances. */
static long long cap_minor(long long gpu, long long gi) { return 3 + (gpu * 15 + gi) * 9; }

bool mig_visible(const struct gpu *g, const struct mig *m)
{
	long long access = cap_minor(g->minor, m->gi);
	return opens(O_RDONLY, "nvidia-caps/nvidia-cap%lld", access) &&
	       opens(O_RDONLY, "nvidia-caps/nvidia-cap%lld", access + 1 + m->ci);
}
