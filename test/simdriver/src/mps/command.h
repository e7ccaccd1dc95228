/* Requests to the daemon, and what the functions that execute them share. */
#pragma once
#include "daemon.h"

enum { MAX_WORDS = 16 };

struct request {
	const struct command *command;
	const struct connection *from;
	FILE *out;
	int nargs, noptions;
	char *args[MAX_WORDS], *options[MAX_WORDS]; /* options without the dashes */
};

/* The value of an option: empty for a flag, NULL if it is not set. */
const char *option(const struct request *r, const char *name);

/* Prints a message and returns the exit status 1. */
int fail(const struct request *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* These print the error and return NULL if there is no such server or namespace. */
struct server *find_server(const struct request *r, const char *name);
struct namespace *find_namespace(const struct request *r, const struct server *server, const char *name);

/* Commands that print servers, namespaces and clients. */
int server_list(struct request *r);
int server_get(struct request *r);
int namespace_list(struct request *r);
int namespace_get(struct request *r);
int client_list(struct request *r);
