/* Connections of programs that use libcuda, and of commands. */
#define _GNU_SOURCE
#include "daemon.h"

#include <stdlib.h>
#include <string.h>

/* Results of CUDA. */
enum { CONNECTION_FAILED = 805, SERVER_NOT_READY = 807 };

static void drop(struct connection *c)
{
	struct connection **at = &mps.connections;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	source_remove(&c->source);
	free(c);
}

/* Sends text. Errors are ignored: the loop drops the connection of a peer that has exited, and the daemon must not wait
 * for a peer that does not read. */
static void reply(const struct connection *c, const char *text)
{
	send(c->source.fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

int clients_of(const struct server *server, const struct namespace *space)
{
	int n = 0;
	for (const struct connection *c = mps.connections; c; c = c->next)
		n += c->client && c->space->server == server && (!space || c->space == space);
	return n;
}

void client_disconnect(struct connection *client, bool announce)
{
	if (announce && client->client)
		reply(client, "terminated\n");
	drop(client);
}

/* Programs that hang in their registration are disconnected, too. Commands continue, as if sent to the daemon's socket. */
void clients_disconnect(const struct server *server, const struct namespace *space, bool announce)
{
	for (struct connection *c = mps.connections, *next; c; c = next) {
		next = c->next;
		if (!c->space || c->space->server != server || (space && c->space != space))
			continue;
		if (c->client || (c->held && !strncmp(c->input, "register\n", 9)))
			client_disconnect(c, announce);
		else
			c->space = NULL;
	}
}

static bool allows(const struct server *server, const struct connection *c)
{
	return mps.multiuser || c->uid == server->uid;
}

/* Reads the name of the program of a client; "-" if it is unknown. */
static void read_command(struct connection *c)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/comm", c->pid);
	FILE *file = fopen(path, "re");
	if (!file || !fgets(c->command, sizeof c->command, file))
		strcpy(c->command, "-");
	c->command[strcspn(c->command, "\n")] = 0;
	if (file)
		fclose(file);
}

/* Makes a program a client or replies with an error; false if a fault holds it back. */
static bool connect_client(struct connection *c)
{
	char text[DEVICES_LEN + 64];
	const struct server *server = c->space ? c->space->server : NULL;
	if (!server || !c->pid || !allows(server, c)) {
		snprintf(text, sizeof text, "error %d\n", CONNECTION_FAILED);
	} else if (!server->pid) {
		snprintf(text, sizeof text, "error %d\n", SERVER_NOT_READY);
	} else if (fault_is_set(FAULT_WEDGED, server)) {
		return false;
	} else {
		snprintf(text, sizeof text, "registered %d %.2f %s\n", server->pid, c->space->percentage,
			 *server->devices ? server->devices : "-");
		c->client = true;
		strcpy(c->device, "-");
		read_command(c);
	}
	reply(c, text);
	return true;
}

/* Appends a command to the log, if CUDA_MPS_LOG_DIRECTORY is set. */
static void write_log(const struct connection *c, const char *line)
{
	char path[4096];
	const char *dir = getenv("CUDA_MPS_LOG_DIRECTORY");
	if (!dir || !*dir)
		return;
	snprintf(path, sizeof path, "%s/control.log", dir);
	FILE *log = fopen(path, "ae");
	if (!log)
		return;
	fprintf(log, "uid=%u %s\n", c->uid, line);
	fclose(log);
}

/* Runs a command; false if a fault makes it hang. */
static bool run(struct connection *c, const char *line)
{
	char *text = NULL, status_text[16];
	size_t length;
	if (!c->logged)
		write_log(c, line);
	c->logged = true;
	FILE *out = open_memstream(&text, &length);
	if (!out)
		abort();
	int status = command_run(c, line, out);
	fclose(out);
	if (status != HELD) {
		snprintf(status_text, sizeof status_text, "%d ", status);
		reply(c, status_text);
		reply(c, text);
	}
	free(text);
	return status != HELD;
}

/* Handles a line; false if a fault holds it back. Sets end if the connection must be closed: after a command, or if a
 * client sends one. */
static bool handle(struct connection *c, const char *line, bool *end)
{
	if (!strcmp(line, "register") && !c->client)
		return connect_client(c);
	if (!strncmp(line, "context ", 8) && c->client) {
		snprintf(c->device, sizeof c->device, "%.*s", (int)sizeof c->device - 1, line + 8);
		return true;
	}
	*end = true;
	return c->client || run(c, line);
}

/* Handles the complete lines of the input. */
static void advance(struct connection *c)
{
	char line[LINE_LEN], *newline;
	bool end = false;
	while (!end && (newline = memchr(c->input, '\n', c->length))) {
		size_t length = newline - c->input;
		memcpy(line, c->input, length);
		line[length] = 0;
		c->held = c->source.paused = !handle(c, line, &end);
		if (c->held)
			return;
		c->length -= length + 1;
		memmove(c->input, newline + 1, c->length);
	}
	if (end || c->length == sizeof c->input)
		drop(c);
}

static void receive(struct source *s)
{
	struct connection *c = (struct connection *)s;
	ssize_t n = c->held ? 0 : read(s->fd, c->input + c->length, sizeof c->input - c->length);
	if (n <= 0) {
		drop(c);
		return;
	}
	c->length += n;
	advance(c);
}

void connection_accept(struct source *s)
{
	struct ucred peer;
	socklen_t size = sizeof peer;
	int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	struct connection *c = calloc(1, sizeof *c);
	if (!c || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
		free(c);
		close(fd);
		return;
	}
	c->space = ((struct listener *)s)->space;
	c->pid = peer.pid;
	c->uid = peer.uid;
	c->next = mps.connections;
	mps.connections = c;
	source_add(&c->source, fd, receive);
}

bool connections_held(void)
{
	const struct connection *c = mps.connections;
	while (c && !c->held)
		c = c->next;
	return c;
}

/* One connection at a time, because a command may end others. */
void connections_retry(void)
{
	struct connection *c;
	for (c = mps.connections; c; c = c->next)
		c->retry = c->held;
	for (;;) {
		for (c = mps.connections; c && !c->retry; c = c->next)
			;
		if (!c)
			return;
		c->retry = false;
		advance(c);
	}
}
