/* The MPS control daemon: a single thread that polls file descriptors. */
#pragma once
#include "protocol.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { NAME_LEN = 65, DEVICES_LEN = 2048, PATH_LEN = 108 };

/* A polled file descriptor, which source_remove closes. The oldest source that is ready is handled first. */
struct source {
	struct source *next;
	int fd;
	bool paused; /* ready only when the peer has closed the connection */
	void (*ready)(struct source *);
};

void source_add(struct source *s, int fd, void (*ready)(struct source *));
void source_remove(struct source *s);

/* The socket in the directory of the daemon, a server or a namespace. */
struct listener {
	struct source source;
	struct namespace *space; /* of the clients that connect; NULL: the daemon's socket */
};

struct namespace {
	struct namespace *next;
	struct server *server;
	struct listener listener;
	char name[NAME_LEN];
	double percentage;
	char pinned[32]; /* limit of pinned memory; empty: none */
};

struct server {
	struct server *next;
	struct source process;    /* ready when the process has ended */
	struct listener listener; /* for clients of the namespace "default" */
	char name[NAME_LEN];
	uid_t uid;
	pid_t pid; /* 0: killed */
	char devices[DEVICES_LEN]; /* allowed UUIDs, separated by commas; empty: all */
	struct namespace *spaces;  /* the first is "default" */
};

/* A connection of a program that uses libcuda, or of a command. */
struct connection {
	struct source source;
	struct connection *next;
	struct namespace *space; /* of the socket; NULL: the daemon's, or clients_disconnect was called */
	pid_t pid;
	uid_t uid;
	char input[LINE_LEN];
	size_t length;
	bool held;   /* a fault holds the first line of the input back */
	bool retry;  /* connections_retry has not handled it yet */
	bool logged; /* the first line of the input */
	bool client; /* registered */
	char device[96]; /* of the latest context; "-": none */
	char command[32];
};

extern struct daemon {
	char dir[PATH_LEN];
	const char *server_program;
	bool multiuser, stopping;
	struct listener listener;
	struct server *servers;
	struct connection *connections;
} mps;

/* Runs the daemon, and returns its exit status. When it accepts commands, and ready is not negative, it redirects its
 * standard input, output and error to /dev/null, and writes a byte to ready. */
int daemon_run(int ready);

/* Deletes all servers, removes the socket of the daemon, and ends it. */
void daemon_stop(void);

void connection_accept(struct source *listener);
void connections_retry(void);
bool connections_held(void);

/* The number of clients of a namespace, or if it is NULL, of the server. */
int clients_of(const struct server *server, const struct namespace *space);

/* Ends the connections of the clients of a namespace, or if it is NULL, of the server. If announced, calls of the
 * clients return CUDA_ERROR_MPS_CLIENT_TERMINATED. */
void clients_disconnect(const struct server *server, const struct namespace *space, bool announce);
void client_disconnect(struct connection *client, bool announce);

/* Runs a command of a peer, and returns its exit status, or HELD if a fault makes it hang. */
enum { HELD = -1 };
int command_run(const struct connection *from, const char *line, FILE *out);

struct server *server_find(const char *name);
struct namespace *namespace_find(const struct server *server, const char *name);

/* These print the reason and return NULL on failure. devices may be NULL. */
struct server *server_create(const char *name, uid_t uid, const char *devices, FILE *out);
struct namespace *namespace_create(struct server *server, const char *name, FILE *out);

/* These disconnect the clients. */
void server_delete(struct server *server);
void namespace_delete(struct namespace *space);

/* The directory of a server, or of a namespace. */
void directory(char out[PATH_LEN], const struct server *server, const struct namespace *space);

/* Creates the socket in a directory for clients of a namespace; prints the reason and returns false on failure. */
bool listener_open(struct listener *l, const char *dir, struct namespace *space, FILE *out);

/* directory_clear removes the socket and the faults from a directory, directory_remove also the directory. */
void directory_clear(const char *dir);
void directory_remove(const char *dir);

bool process_start(struct server *server, FILE *out);
void process_kill(struct server *server);

/* Whether a fault is set for the daemon or for this server (may be NULL). */
bool fault_is_set(const char *fault, const struct server *server);
void faults_remove(const char *dir);

/* The faults, as in mps.go. */
#define FAULT_WEDGED "wedged"
#define FAULT_COMMANDS "commands-hang"
#define FAULT_TERMINATE "terminate-hangs"
#define FAULT_VANISHES "server-vanishes"
