/* Commands that print servers, namespaces and clients. */
#include "command.h"
#include "table.h"

#include <string.h>

static const char *status_of(const struct server *s) { return s->pid ? "Ready" : "Fault"; }

static const char *or_none(const char *text) { return *text ? text : "-"; }

static void add_server(struct table *t, const struct server *s)
{
	char dir[PATH_LEN];
	directory(dir, s, NULL);
	table_add(t, "%s\n%u\n%d\n%s\n%s\n%s\n-", s->name, s->uid, s->pid, status_of(s), dir, or_none(s->devices));
}

static void add_namespace(struct table *t, const struct namespace *n)
{
	char dir[PATH_LEN];
	directory(dir, n->server, n);
	table_add(t, "%s\n%s\n%s\n%s\n%.2f\n0\n%s", n->name, n->server->name, status_of(n->server), or_none(n->pinned),
		  n->percentage, dir);
}

static void add_client(struct table *t, const struct connection *c)
{
	const struct namespace *n = c->space;
	table_add(t, "%d\n%s\n%s\n%s/%s (0)\n%s", c->pid, n->server->name, c->device, n->server->name, n->name, c->command);
}

static struct table servers(void)
{
	struct table t = {0};
	table_add(&t, "name\nuid\npid\nstatus\npipe-directory\nallowed-devices\ncontext-ids");
	return t;
}

static struct table namespaces(void)
{
	struct table t = {0};
	table_add(&t, "name\nserver\nserver-status\npinned-memory-limit\nactive-thread-percentage\nclient-priority\npipe-directory");
	return t;
}

static int print(const struct request *r, struct table t)
{
	const char *format = option(r, "format");
	bool printed = table_print(&t, format ? format : "table", r->out);
	table_free(&t);
	return printed ? 0 : fail(r, "Unknown format '%s'", format);
}

/* Prints a field of the only row. */
static int print_field(const struct request *r, struct table t, const char *field)
{
	const char *cell = table_cell(&t, 1, field);
	int status = cell ? 0 : fail(r, "Unknown field '%s'", field);
	if (cell)
		fprintf(r->out, "%s\n", cell);
	table_free(&t);
	return status;
}

int server_list(struct request *r)
{
	struct table t = servers();
	if (r->nargs && !find_server(r, r->args[0])) {
		table_free(&t);
		return 1;
	}
	for (const struct server *s = mps.servers; s; s = s->next)
		if (!r->nargs || !strcmp(s->name, r->args[0]))
			add_server(&t, s);
	return print(r, t);
}

int server_get(struct request *r)
{
	const struct server *s = find_server(r, r->args[0]);
	if (!s)
		return 1;
	struct table t = servers();
	add_server(&t, s);
	return print_field(r, t, r->args[1]);
}

/* Whether a command applies to a server: --server names it or is not set. */
static bool selects(const struct request *r, const struct server *s)
{
	const char *name = option(r, "server");
	return !name || !strcmp(name, s->name);
}

int namespace_list(struct request *r)
{
	struct table t = namespaces();
	if (option(r, "server") && !find_server(r, option(r, "server"))) {
		table_free(&t);
		return 1;
	}
	for (const struct server *s = mps.servers; s; s = s->next)
		for (const struct namespace *n = selects(r, s) ? s->spaces : NULL; n; n = n->next)
			if (!r->nargs || !strcmp(n->name, r->args[0]))
				add_namespace(&t, n);
	return print(r, t);
}

int namespace_get(struct request *r)
{
	const struct server *s = find_server(r, r->args[1]);
	const struct namespace *n = s ? find_namespace(r, s, r->args[0]) : NULL;
	if (!n)
		return 1;
	struct table t = namespaces();
	add_namespace(&t, n);
	return print_field(r, t, r->args[2]);
}

int client_list(struct request *r)
{
	struct table t = {0};
	if (option(r, "server") && !find_server(r, option(r, "server")))
		return 1;
	table_add(&t, "pid\nserver\ndevice\nnamespace\ncommand");
	for (const struct connection *c = mps.connections; c; c = c->next)
		if (c->client && selects(r, c->space->server))
			add_client(&t, c);
	return print(r, t);
}
