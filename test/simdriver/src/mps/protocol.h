/*
 * The protocol of control sockets. Each directory of the daemon, its servers and their namespaces has a socket, named
 * control. A peer sends lines of words, separated by spaces:
 *
 *   register      from libcuda: the peer becomes a client of the socket's server, until the connection ends. The reply
 *                 is "registered PID PERCENTAGE DEVICES": the PID of the server, the active thread percentage of the
 *                 namespace, and the UUIDs of the devices that the server allows, separated by commas ("-": all); or
 *                 "error RESULT", a CUresult. The line "terminated" announces that the client is terminated.
 *   context UUID  from a client that has created a context on a device; no reply
 *   otherwise     a command. The reply is its exit status, a space, and its output; then the connection ends.
 */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_LEN = 4096 };

/* The address of the socket in a directory; false if its path is too long. */
static inline int mps_address(struct sockaddr_un *out, const char *dir)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	return snprintf(out->sun_path, sizeof out->sun_path, "%s/control", dir) < (int)sizeof out->sun_path;
}

/* Connects to the socket in a directory; returns -1 if it is not reachable. */
static inline int mps_connect(const char *dir)
{
	struct sockaddr_un address;
	if (!mps_address(&address, dir)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
		int cause = errno;
		close(fd);
		errno = cause;
		return -1;
	}
	return fd;
}
