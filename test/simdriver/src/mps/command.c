/* The commands of the daemon. */
#include "command.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct command {
	const char *module, *verb;
	int min, max;        /* number of arguments */
	const char *options; /* names, each followed by a space */
	bool changes;        /* requires root */
	int (*run)(struct request *);
};

int fail(const struct request *r, const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vfprintf(r->out, format, values);
	va_end(values);
	fputc('\n', r->out);
	return 1;
}

const char *option(const struct request *r, const char *name)
{
	size_t n = strlen(name);
	for (int i = 0; i < r->noptions; i++)
		if (!strncmp(r->options[i], name, n) && (!r->options[i][n] || r->options[i][n] == '='))
			return r->options[i] + n + (r->options[i][n] == '=');
	return NULL;
}

struct server *find_server(const struct request *r, const char *name)
{
	struct server *s = server_find(name);
	if (!s)
		fail(r, "Server '%s' does not exist", name);
	return s;
}

struct namespace *find_namespace(const struct request *r, const struct server *server, const char *name)
{
	struct namespace *n = namespace_find(server, name);
	if (!n)
		fail(r, "Namespace '%s' of server '%s' does not exist", name, server->name);
	return n;
}

/* The namespace named by the first argument, of the server named by --server; prints the error and returns NULL on
 * failure. */
static struct namespace *argument(const struct request *r)
{
	const char *name = option(r, "server");
	struct server *s = name ? find_server(r, name) : NULL;
	if (!name)
		fail(r, "Missing option --server");
	return s ? find_namespace(r, s, r->args[0]) : NULL;
}

static bool parse_percentage(const char *text, double *out)
{
	char *end;
	*out = strtod(text, &end);
	return isdigit((unsigned char)*text) && !*end && *out >= 1 && *out <= 100;
}

/* Whether text is a size in bytes, such as 8G. */
static bool is_size(const char *text)
{
	size_t digits = strspn(text, "0123456789");
	return digits && digits < 16 && (!text[digits] || (strchr("KMGT", text[digits]) && !text[digits + 1]));
}

/* Applies the limit options to a namespace, which must not have clients. */
static int set_limits(const struct request *r, struct namespace *n)
{
	const char *percentage = option(r, "active-thread-percentage"), *pinned = option(r, "pinned-memory-limit");
	double value = n->percentage;
	if (!percentage && !pinned)
		return fail(r, "Missing option --active-thread-percentage or --pinned-memory-limit");
	if (percentage && !parse_percentage(percentage, &value))
		return fail(r, "Invalid percentage '%s': want 1 to 100", percentage);
	if (pinned && !is_size(pinned))
		return fail(r, "Invalid size '%s'", pinned);
	if (clients_of(n->server, n))
		return fail(r, "Namespace '%s' of server '%s' has active clients", n->name, n->server->name);
	n->percentage = value;
	if (pinned)
		strcpy(n->pinned, pinned);
	return 0;
}

static int create_server(struct request *r)
{
	char *end = "";
	const char *uid = option(r, "uid"), *devices = option(r, "allowed-devices");
	unsigned long owner = uid ? strtoul(uid, &end, 10) : r->from->uid;
	if (uid && (!isdigit((unsigned char)*uid) || *end))
		return fail(r, "Invalid UID '%s'", uid);
	if (owner && mps.multiuser)
		return fail(r, "In multiuser mode, UID 0 owns all servers");
	if (devices && strlen(devices) >= DEVICES_LEN)
		return fail(r, "Too many devices");
	return server_create(r->args[0], owner, devices, r->out) ? 0 : 1;
}

static int delete_server(struct request *r)
{
	struct server *s = find_server(r, r->args[0]);
	if (!s)
		return 1;
	if (clients_of(s, NULL) && !option(r, "force"))
		return fail(r, "Server '%s' has active clients; use --force", s->name);
	server_delete(s);
	return 0;
}

static int set_server(struct request *r)
{
	const struct server *s = find_server(r, r->args[0]);
	return s ? set_limits(r, s->spaces) : 1;
}

static int create_namespace(struct request *r)
{
	const char *name = option(r, "server");
	struct server *s = name ? find_server(r, name) : NULL;
	if (!name)
		return fail(r, "Missing option --server");
	return s && namespace_create(s, r->args[0], r->out) ? 0 : 1;
}

static int delete_namespace(struct request *r)
{
	struct namespace *n = argument(r);
	if (!n)
		return 1;
	if (n == n->server->spaces)
		return fail(r, "Namespace '%s' cannot be deleted", n->name);
	if (clients_of(n->server, n) && !option(r, "force"))
		return fail(r, "Namespace '%s' of server '%s' has active clients; use --force", n->name, n->server->name);
	namespace_delete(n);
	return 0;
}

static int set_namespace(struct request *r)
{
	struct namespace *n = argument(r);
	return n ? set_limits(r, n) : 1;
}

static int terminate_client(struct request *r)
{
	struct connection *c = mps.connections;
	while (c && (!c->client || c->pid != atoi(r->args[0])))
		c = c->next;
	if (!c)
		return fail(r, "Client '%s' does not exist", r->args[0]);
	if (fault_is_set(FAULT_TERMINATE, c->space->server))
		return HELD;
	client_disconnect(c, true);
	return 0;
}

static int quit(struct request *r)
{
	(void)r;
	daemon_stop();
	return 0;
}

#define LIMITS "active-thread-percentage pinned-memory-limit "

static const struct command commands[] = {
	{"server", "create", 1, 1, "uid allowed-devices ", true, create_server},
	{"server", "delete", 1, 1, "force ", true, delete_server},
	{"server", "list", 0, 1, "format ", false, server_list},
	{"server", "set", 1, 1, LIMITS, true, set_server},
	{"server", "get", 2, 2, "", false, server_get},
	{"namespace", "create", 1, 1, "server ", true, create_namespace},
	{"namespace", "delete", 1, 1, "server force ", true, delete_namespace},
	{"namespace", "list", 0, 1, "server format ", false, namespace_list},
	{"namespace", "set", 1, 1, "server " LIMITS, true, set_namespace},
	{"namespace", "get", 3, 3, "", false, namespace_get},
	{"client", "list", 0, 0, "server all format ", false, client_list},
	{"client", "terminate", 1, 1, "", true, terminate_client},
	{"daemon", "quit", 0, 0, "", true, quit},
};

static const struct command *find(const char *module, const char *verb)
{
	for (size_t i = 0; module && verb && i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(commands[i].module, module) && !strcmp(commands[i].verb, verb))
			return &commands[i];
	return NULL;
}

static bool has_option(const struct command *c, const char *text)
{
	size_t n = strcspn(text, "=");
	for (const char *name = c->options; *name; name += strcspn(name, " ") + 1)
		if (strcspn(name, " ") == n && !strncmp(name, text, n))
			return true;
	return false;
}

/* Parses the arguments and options; prints the error and returns 1 on failure. */
static int parse(struct request *r, char *rest)
{
	for (char *word = strtok_r(NULL, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		if (r->nargs == MAX_WORDS || r->noptions == MAX_WORDS)
			return fail(r, "Too many arguments");
		if (strncmp(word, "--", 2))
			r->args[r->nargs++] = word;
		else if (has_option(r->command, word + 2))
			r->options[r->noptions++] = word + 2;
		else
			return fail(r, "Unknown option '%s'", word);
	}
	if (r->nargs < r->command->min || r->nargs > r->command->max)
		return fail(r, "'%s %s' requires %d to %d arguments", r->command->module, r->command->verb,
			    r->command->min, r->command->max);
	return 0;
}

static void print_upper(FILE *out, const char *text)
{
	while (*text)
		fputc(toupper((unsigned char)*text++), out);
}

static int refuse(const struct request *r)
{
	fprintf(r->out, "Insufficient privileges for UID %u. '", r->from->uid);
	print_upper(r->out, r->command->module);
	fputc(' ', r->out);
	print_upper(r->out, r->command->verb);
	return fail(r, "' requires server owner.");
}

int command_run(const struct connection *from, const char *line, FILE *out)
{
	char words[LINE_LEN], *rest;
	strcpy(words, line);
	char *module = strtok_r(words, " ", &rest), *verb = module ? strtok_r(NULL, " ", &rest) : NULL;
	struct request r = {.command = find(module, verb), .from = from, .out = out};
	if (!r.command)
		return fail(&r, "Unknown command '%s'", line);
	if (!from->pid)
		return fail(&r, "Cannot determine the PID of the command");
	if (parse(&r, rest))
		return 1;
	if (r.command->changes && from->uid)
		return refuse(&r);
	return fault_is_set(FAULT_COMMANDS, NULL) ? HELD : r.command->run(&r);
}
