/*
 * Memory limits of cgroups, in a table before the state in the library file of NVML, where programs in containers find
 * them, too. The driver keeps them until it is replaced. Writers and programs that allocate memory hold a flock() on
 * the file.
 */
#pragma once
#include "memory.h"
#include "nvml/state.h"

#include <fcntl.h>

enum { MAX_LIMITS = 256, CGROUP_LEN = 320, LIMITS_SIZE = 102 * 1024 };

struct limit {
	char gpu[TEXT_LEN];      /* UUID; empty: unused entry */
	char cgroup[CGROUP_LEN]; /* path as in /proc/self/cgroup, in the host's cgroup namespace */
	uint64_t inode;          /* of the directory, to detect that it was removed */
	uint64_t soft, hard;     /* bytes */
};

/* Memory that counts against a limit is recorded as read locks on the library file, in a region of offsets that belongs
 * to the limit. Unlike /proc/locks, F_GETLK finds locks of processes in other PID namespaces. */
enum { LIMIT_REGIONS = 8192, PROCESS_BITS = 38, PROCESSES = 1 << (REGION_BITS - PROCESS_BITS) };

static inline long long region_start(int limit) { return (LIMIT_REGIONS + (long long)limit) << REGION_BITS; }

/* The total length of the locks of other processes between start and end. fd refers to the library file. */
static inline unsigned long long locked(int fd, long long start, long long end)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = end - start};
	if (start >= end || fcntl(fd, F_GETLK, &l) || l.l_type == F_UNLCK)
		return 0;
	return locked(fd, start, l.l_start) + l.l_len + locked(fd, l.l_start + l.l_len, end);
}

_Static_assert(sizeof(struct limit) * MAX_LIMITS == LIMITS_SIZE, "size of the table");
