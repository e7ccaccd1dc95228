/*
 * Memory that a process has allocated with libcuda is recorded as a read lock on the library file
 * of NVML. The kernel removes it when the process ends, and lists it in /proc/locks
 * with the PID in the namespace of that /proc, and only if the process is visible there.
 * Real drivers list processes in the same way.
 *
 * Each device has a region of offsets, which may lie beyond the end of the file, and
 * each process has a place in the region. The lock starts at the place and is as long
 * as the memory. Unlike /proc/locks, F_GETLK finds locks of processes in other PID
 * namespaces.
 *
 * A device has a second region for its contexts. A process with a context holds a read lock on one byte of that region.
 * The offset of the byte is 0, or for a client of an MPS server, the PID of the server in the daemon's PID namespace.
 */
#pragma once

#include <fcntl.h>

enum {
	REGION_BITS = 48,
	REGIONS_PER_GPU = 128,
	PROCESS_BITS = 38,
	PROCESSES = 1 << (REGION_BITS - PROCESS_BITS),
	CONTEXT_REGIONS = 16384,
};

/* The region of a GPU by minor number, or of a MIG device; gi is -1 for a GPU. */
static inline long long memory_region(long long minor, long long gi, long long ci)
{
	return minor * REGIONS_PER_GPU + (gi < 0 ? 0 : 1 + gi * 8 + ci);
}

/* The total length of the locks of other processes between start and end. fd refers to the library file. */
static inline unsigned long long locked(int fd, long long start, long long end)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = end - start};
	if (start >= end || fcntl(fd, F_GETLK, &l) || l.l_type == F_UNLCK)
		return 0;
	return locked(fd, start, l.l_start) + l.l_len + locked(fd, l.l_start + l.l_len, end);
}

/* The memory of other processes in a region. */
static inline unsigned long long locked_in(int fd, long long region)
{
	return locked(fd, region << REGION_BITS, (region + 1) << REGION_BITS);
}

/* The offset at which the region for the contexts of a device starts, by the device's region for memory. */
static inline long long context_start(long long region) { return (CONTEXT_REGIONS + region) << REGION_BITS; }
