/*
 * Memory that a process has allocated with libcuda, as a read lock on the library file
 * of NVML. The kernel removes it when the process ends, and lists it in /proc/locks
 * with the PID in the namespace of that /proc, and only if the process is visible there.
 * Drivers list processes in the same way.
 *
 * Each device has a region of offsets, which may lie beyond the end of the file. The
 * lock starts with the region and is as long as the memory.
 */
#pragma once

enum { REGION_BITS = 48, REGIONS_PER_GPU = 128 };

/* The region of a GPU by minor number, or of a MIG device; gi is -1 for a GPU. */
static inline long long memory_region(long long minor, long long gi, long long ci)
{
	return minor * REGIONS_PER_GPU + (gi < 0 ? 0 : 1 + gi * 8 + ci);
}
