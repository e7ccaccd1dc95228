/*
 * Call counters in the file that NVSIM_CALLS names: an array that all processes of
 * a test share, so that a reader observes calls while they happen.
 */
#include "nvsim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_COUNTERS = 256, FREE = 0, TAKEN = 1, NAMED = 2 };

struct counter {
	_Atomic uint32_t state;
	char name[52];
	_Atomic uint64_t calls;
};
_Static_assert(sizeof(struct counter) == 64, "must match counterSize in calls.go");

static struct counter unread; /* for calls that are not counted */
static struct counter *table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void map_table(void)
{
	const char *path = getenv("NVSIM_CALLS");
	if (!path || !*path)
		return;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || ftruncate(fd, MAX_COUNTERS * sizeof *table)) {
		perror("simulated driver: opening NVSIM_CALLS");
		abort();
	}
	table = mmap(NULL, MAX_COUNTERS * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (table == MAP_FAILED)
		abort();
	close(fd);
}

static struct counter *find(const char *func)
{
	pthread_once(&once, map_table);
	for (int i = 0; table && i < MAX_COUNTERS; i++) {
		uint32_t expected = FREE;
		if (atomic_compare_exchange_strong(&table[i].state, &expected, TAKEN)) {
			snprintf(table[i].name, sizeof table[i].name, "%s", func);
			atomic_store(&table[i].state, NAMED);
		}
		while (atomic_load(&table[i].state) != NAMED)
			;
		if (!strncmp(table[i].name, func, sizeof table[i].name - 1))
			return &table[i];
	}
	return &unread;
}

void calls_count(const char *func, struct counter **counter)
{
	struct counter *c = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
	if (!c)
		__atomic_store_n(counter, c = find(func), __ATOMIC_RELEASE);
	atomic_fetch_add(&c->calls, 1);
}
