/* Reads and writes the memory limits of cgroups. */
#define _GNU_SOURCE
#include "../limits.h"
#include "nvsim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MOUNT[] = "/sys/fs/cgroup";

/* The first driver with memory limits. */
enum { LIMITS_SINCE = 615 };

static const uint64_t UNLIMITED = ~0ULL;

/* The reason that limits cannot be set or read; NVML_SUCCESS if there is none. */
static nvmlReturn_t refused(const struct view *v)
{
	if (atoi(v->state->driver.module) < LIMITS_SINCE)
		return NVML_ERROR_FUNCTION_NOT_FOUND; /* as if the library lacked the symbol */
	return v->gpu->mig > 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* Identifies a cgroup by the path of its directory. */
static bool identify(const char *dir, struct limit *out)
{
	struct stat st;
	size_t n = strlen(MOUNT);
	if (strncmp(dir, MOUNT, n) || (dir[n] && dir[n] != '/') || strlen(dir + n) >= CGROUP_LEN || stat(dir, &st))
		return false;
	strcpy(out->cgroup, dir[n] ? dir + n : "/");
	out->inode = st.st_ino;
	return S_ISDIR(st.st_mode);
}

static bool exists(const struct limit *l)
{
	struct stat st;
	char dir[sizeof MOUNT + CGROUP_LEN];
	snprintf(dir, sizeof dir, "%s%s", MOUNT, l->cgroup);
	return stat(dir, &st) == 0 && st.st_ino == l->inode;
}

/* The offset of an entry, from the end of the library file. */
static off_t offset(int index) { return SLOT_SIZE + LIMITS_SIZE - index * (off_t)sizeof(struct limit); }

static bool read_table(struct limit table[MAX_LIMITS]) { return library_read(table, LIMITS_SIZE, offset(0)); }

/* Returns the index of the entry of a GPU and cgroup; -1 if there is none. */
static int find(const struct limit table[MAX_LIMITS], const struct limit *of)
{
	for (int i = 0; i < MAX_LIMITS; i++)
		if (!strcmp(table[i].gpu, of->gpu) && !strcmp(table[i].cgroup, of->cgroup) && table[i].inode == of->inode)
			return i;
	return -1;
}

static int find_unused(const struct limit table[MAX_LIMITS])
{
	for (int i = 0; i < MAX_LIMITS; i++)
		if (!*table[i].gpu || !exists(&table[i]))
			return i;
	return -1;
}

static bool write_entry(int index, const struct limit *l) { return library_write(l, sizeof *l, offset(index)); }

static nvmlReturn_t set(const struct limit *l)
{
	static struct limit table[MAX_LIMITS];
	if (!read_table(table))
		return NVML_ERROR_UNKNOWN;
	int i = find(table, l);
	if (l->hard == UNLIMITED && !l->soft)
		return i < 0 || write_entry(i, &(struct limit){0}) ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
	if (i < 0)
		i = find_unused(table);
	return i >= 0 && write_entry(i, l) ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	CALL(GPU, device);
	nvmlReturn_t ret = refused(&v);
	if (ret != NVML_SUCCESS)
		return ret;
	REQUIRE(limits && limits->nameSpace && limits->softLimit <= limits->hardLimit);
	REQUIRE(limits->hardLimit == UNLIMITED || limits->hardLimit <= (uint64_t)v.gpu->memory);
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	if (*call_answer(&v, __func__, "")) /* a fault that omits the write; see Fault.Answer in state.go */
		return NVML_SUCCESS;
	struct limit l = {.soft = limits->softLimit, .hard = limits->hardLimit};
	strcpy(l.gpu, v.gpu->uuid);
	if (!identify(limits->nameSpace, &l) || flock(state_fd(), LOCK_EX))
		return NVML_ERROR_OPERATING_SYSTEM;
	ret = set(&l);
	flock(state_fd(), LOCK_UN);
	return ret;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	static struct limit table[MAX_LIMITS];
	CALL(GPU, device);
	nvmlReturn_t ret = refused(&v);
	if (ret != NVML_SUCCESS)
		return ret;
	REQUIRE(limits && limits->nameSpace);
	struct limit l = {0};
	strcpy(l.gpu, v.gpu->uuid);
	if (!identify(limits->nameSpace, &l))
		return NVML_ERROR_OPERATING_SYSTEM;
	if (!read_table(table))
		return NVML_ERROR_UNKNOWN;
	int i = find(table, &l);
	limits->softLimit = i < 0 ? 0 : table[i].soft;
	limits->hardLimit = i < 0 ? UNLIMITED : table[i].hard;
	limits->currentUsed = i < 0 ? 0 : locked_in(state_fd(), LIMIT_REGIONS + i);
	return NVML_SUCCESS;
}
