/*
 * Memory limits of cgroups, in a table before the state in the library file of NVML, where programs in containers find
 * them, too. The driver keeps them until it is unloaded or upgraded. Writers and programs that allocate memory hold a
 * flock() on the file.
 */
#pragma once
#include "memory.h"
#include "nvml/state.h"

enum { MAX_LIMITS = 256, CGROUP_LEN = 320, LIMITS_SIZE = 102 * 1024 };

struct limit {
	char gpu[TEXT_LEN];      /* UUID; empty: unused entry */
	char cgroup[CGROUP_LEN]; /* path as in /proc/self/cgroup, in the host's cgroup namespace */
	uint64_t inode;          /* of the directory, to detect that it was removed */
	uint64_t soft, hard;     /* bytes */
};

/* Memory that counts against a limit is also recorded in a region that belongs to the limit, after those of devices. */
enum { LIMIT_REGIONS = 8192 };

_Static_assert(sizeof(struct limit) * MAX_LIMITS == LIMITS_SIZE, "size of the table");
