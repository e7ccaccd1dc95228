/* The process of a server, which ends with the daemon. */
#define _GNU_SOURCE
#include "daemon.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static int reap(struct server *server)
{
	int status = 0;
	waitpid(server->pid, &status, 0);
	source_remove(&server->process);
	server->pid = 0;
	return status;
}

/* A server whose process exits is deleted. One whose process is killed has the status Fault until it is deleted. */
static void ended(struct source *s)
{
	struct server *server = (struct server *)((char *)s - offsetof(struct server, process));
	int status = reap(server);
	if (WIFEXITED(status))
		server_delete(server);
	else
		clients_disconnect(server, NULL, false);
}

static void run(const struct server *server, int parent)
{
	char devices[DEVICES_LEN + 16];
	sigset_t none;
	snprintf(devices, sizeof devices, "%s%s", server->devices,
		 !fault_is_set(FAULT_VANISHES, NULL) ? "" : *server->devices ? ",unknown" : "unknown");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (dup2(parent, STDIN_FILENO) == STDIN_FILENO)
		execlp(mps.server_program, mps.server_program, server->name, devices, NULL);
	_exit(127);
}

/* Returns when the server process runs. It checks the devices later. */
bool process_start(struct server *server, FILE *out)
{
	int pair[2];
	char byte;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
		fprintf(out, "Cannot start server '%s': %s\n", server->name, strerror(errno));
		return false;
	}
	server->pid = fork();
	if (!server->pid)
		run(server, pair[1]);
	close(pair[1]);
	source_add(&server->process, pair[0], ended);
	if (server->pid > 0 && read(pair[0], &byte, 1) == 1)
		return true;
	fprintf(out, "Cannot start server '%s' with the program %s\n", server->name, mps.server_program);
	process_kill(server);
	return false;
}

void process_kill(struct server *server)
{
	if (server->pid > 0) {
		kill(server->pid, SIGKILL);
		reap(server);
	}
	source_remove(&server->process);
}
