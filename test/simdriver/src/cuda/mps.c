/*
 * A client of an MPS server: this process keeps a connection to the MPS control daemon until either side closes it. The
 * process of a server has none.
 */
#define _GNU_SOURCE
#include "../mps/protocol.h"
#include "cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int connection = -1, server;
static double percentage;
static char allowed[LINE_LEN]; /* UUIDs, separated by commas; "-": all */
static atomic_int failure;     /* the result of calls after the connection has ended */

int mps_server(void) { return server; }

CUresult mps_check(void) { return atomic_load(&failure); }

/* Receives a line; returns 0 at the end of the connection. */
static int receive(char line[LINE_LEN])
{
	for (int n = 0; n < LINE_LEN && read(connection, line + n, 1) == 1; n++)
		if (line[n] == '\n') {
			line[n] = 0;
			return 1;
		}
	return 0;
}

/* Waits for the end of the connection. The contexts and memory of this process end with it. */
static void *watch(void *unused)
{
	char line[LINE_LEN];
	int result = receive(line) && !strcmp(line, "terminated") ? CUDA_ERROR_MPS_CLIENT_TERMINATED : CUDA_ERROR_MPS_RPC_FAILURE;
	struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
	atomic_store(&failure, result);
	fcntl(library(), F_SETLK, &all);
	return unused;
}

static CUresult start_watching(void)
{
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&thread, NULL, watch, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* The active thread percentage of this process: its own if lower than the namespace's. */
static double own_percentage(void)
{
	const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	double own = text ? strtod(text, NULL) : 0;
	return own > 0 && own < percentage ? own : percentage;
}

void mps_become_server(const char *uuids)
{
	server = getpid();
	percentage = 100;
	snprintf(allowed, sizeof allowed, "%s", *uuids ? uuids : "-");
}

CUresult mps_connect_server(void)
{
	if (server)
		return CUDA_SUCCESS;
	static const char request[] = "register\n";
	char line[LINE_LEN];
	int error;
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	connection = mps_connect(dir && *dir ? dir : "/tmp/nvidia-mps");
	if (connection < 0)
		return CUDA_SUCCESS;
	if (send(connection, request, strlen(request), MSG_NOSIGNAL) < 0 || !receive(line))
		error = CUDA_ERROR_MPS_CONNECTION_FAILED;
	else if (sscanf(line, "registered %d %lf %4000s", &server, &percentage, allowed) == 3) {
		percentage = own_percentage();
		return start_watching();
	} else if (sscanf(line, "error %d", &error) != 1)
		error = CUDA_ERROR_UNKNOWN;
	close(connection);
	return error;
}

int mps_allows(const char *uuid)
{
	size_t n = strlen(uuid);
	if (!server || !strcmp(allowed, "-"))
		return 1;
	for (const char *at = allowed; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
		if (strcspn(at, ",") == n && !strncmp(at, uuid, n))
			return 1;
	return 0;
}

/* Multiprocessors are assigned in pairs. */
int mps_multiprocessors(int all)
{
	if (!server || percentage >= 100)
		return all;
	int n = (int)(all * percentage / 100) & ~1;
	return n ? n : 2;
}

void mps_report_context(const char *uuid)
{
	char line[128];
	if (connection >= 0)
		send(connection, line, snprintf(line, sizeof line, "context %s\n", uuid), MSG_NOSIGNAL);
}
