/* Start, loop and end of the daemon. */
#include "daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

struct daemon mps;
static struct source *sources;

void source_add(struct source *s, int fd, void (*ready)(struct source *))
{
	struct source **end = &sources;
	while (*end)
		end = &(*end)->next;
	*s = (struct source){.fd = fd, .ready = ready};
	*end = s;
}

void source_remove(struct source *s)
{
	struct source **at = &sources;
	while (*at && *at != s)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = s->next;
	close(s->fd);
}

/* Waits for a source and returns it; NULL if none is ready after the timeout. */
static struct source *wait_ready(int timeout_ms)
{
	static struct pollfd *fds;
	static size_t room;
	size_t n = 0, i = 0;
	for (struct source *s = sources; s; s = s->next, n++) {
		if (n == room && !(fds = realloc(fds, (room = 2 * room + 16) * sizeof *fds)))
			abort();
		fds[n] = (struct pollfd){.fd = s->fd, .events = s->paused ? 0 : POLLIN};
	}
	if (poll(fds, n, timeout_ms) <= 0)
		return NULL;
	for (struct source *s = sources; s; s = s->next)
		if (fds[i++].revents)
			return s;
	return NULL;
}

static void loop(void)
{
	enum { RETRY_MS = 10 };
	while (!mps.stopping) {
		/* One source at a time, because it may remove others. */
		struct source *s = wait_ready(connections_held() ? RETRY_MS : -1);
		if (s)
			s->ready(s);
		connections_retry();
	}
}

void daemon_stop(void)
{
	while (mps.servers)
		server_delete(mps.servers);
	directory_clear(mps.dir);
	mps.stopping = true;
}

static void signaled(struct source *s)
{
	(void)s;
	daemon_stop();
}

static void poll_signals(struct source *s)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	source_add(s, signalfd(-1, &set, SFD_CLOEXEC), signaled);
}

/* Removes the directories of a daemon that was killed: those with a socket, the innermost first. */
static void remove_stale(const char *dir, int depth)
{
	struct sockaddr_un address;
	struct dirent *entry;
	DIR *entries = opendir(dir);
	while (entries && depth && (entry = readdir(entries))) {
		char child[PATH_LEN];
		if (*entry->d_name != '.' && snprintf(child, sizeof child, "%s/%s", dir, entry->d_name) < PATH_LEN)
			remove_stale(child, depth - 1);
	}
	if (entries)
		closedir(entries);
	if (!entries || !strcmp(dir, mps.dir) || !mps_address(&address, dir) || access(address.sun_path, F_OK))
		return;
	directory_remove(dir);
}

static bool open_directory(void)
{
	int running = mps_connect(mps.dir);
	if (running >= 0) {
		close(running);
		fprintf(stderr, "An instance of this daemon is already running\n");
		return false;
	}
	if (mkdir(mps.dir, 0755) && errno != EEXIST) {
		perror(mps.dir);
		return false;
	}
	remove_stale(mps.dir, 2);
	directory_clear(mps.dir);
	return listener_open(&mps.listener, mps.dir, NULL, stderr);
}

static void announce(int ready)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		dup2(null, fd);
	close(null);
	if (write(ready, "", 1) != 1)
		exit(1);
	close(ready);
}

int daemon_run(int ready)
{
	static struct source signals;
	poll_signals(&signals);
	if (!open_directory())
		return 1;
	if (ready >= 0)
		announce(ready);
	loop();
	return 0;
}
