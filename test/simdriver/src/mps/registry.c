/* Servers and namespaces, with their directories. They end with the daemon. */
#include "daemon.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Names are also the names of directories. */
static bool is_valid(const char *name)
{
	size_t n = strlen(name);
	return n && n < NAME_LEN && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static bool check_name(const char *name, FILE *out)
{
	if (!is_valid(name))
		fprintf(out, "Invalid name '%s': want up to %d lowercase letters, digits and underscores\n", name, NAME_LEN - 1);
	return is_valid(name);
}

struct server *server_find(const char *name)
{
	struct server *s = mps.servers;
	while (s && strcmp(s->name, name))
		s = s->next;
	return s;
}

struct namespace *namespace_find(const struct server *server, const char *name)
{
	struct namespace *n = server->spaces;
	while (n && strcmp(n->name, name))
		n = n->next;
	return n;
}

/* Longer paths are truncated; listener_open refuses them. */
void directory(char out[PATH_LEN], const struct server *server, const struct namespace *space)
{
	char path[PATH_LEN + 2 * NAME_LEN + 2];
	snprintf(path, sizeof path, "%s/%s%s%s", mps.dir, server->name, space ? "/" : "", space ? space->name : "");
	memcpy(out, path, PATH_LEN);
	out[PATH_LEN - 1] = 0;
}

void directory_clear(const char *dir)
{
	struct sockaddr_un address;
	if (mps_address(&address, dir))
		unlink(address.sun_path);
	faults_remove(dir);
}

void directory_remove(const char *dir)
{
	directory_clear(dir);
	rmdir(dir);
}

bool listener_open(struct listener *l, const char *dir, struct namespace *space, FILE *out)
{
	struct sockaddr_un address;
	if (!mps_address(&address, dir)) {
		fprintf(out, "The path of the socket in %s is longer than %zu bytes\n", dir, sizeof address.sun_path - 1);
		return false;
	}
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || chmod(address.sun_path, 0666) || listen(fd, 64)) {
		fprintf(out, "Cannot create %s: %s\n", address.sun_path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	source_add(&l->source, fd, connection_accept);
	l->space = space;
	return true;
}

static bool create_directory(const char *dir, struct listener *l, struct namespace *space, FILE *out)
{
	if (mkdir(dir, 0755)) {
		fprintf(out, "Cannot create %s: %s\n", dir, strerror(errno));
		return false;
	}
	if (listener_open(l, dir, space, out))
		return true;
	rmdir(dir);
	return false;
}

static void *allocate(size_t size)
{
	void *zeros = calloc(1, size);
	if (!zeros)
		abort();
	return zeros;
}

struct namespace *namespace_create(struct server *server, const char *name, FILE *out)
{
	char dir[PATH_LEN];
	struct namespace *space, **end = &server->spaces;
	if (!check_name(name, out))
		return NULL;
	if (namespace_find(server, name)) {
		fprintf(out, "Namespace '%s' of server '%s' already exists\n", name, server->name);
		return NULL;
	}
	space = allocate(sizeof *space);
	space->server = server;
	space->percentage = 100;
	strcpy(space->name, name);
	directory(dir, server, space);
	if (!create_directory(dir, &space->listener, space, out)) {
		free(space);
		return NULL;
	}
	while (*end)
		end = &(*end)->next;
	return *end = space;
}

void namespace_delete(struct namespace *space)
{
	char dir[PATH_LEN];
	struct namespace **at = &space->server->spaces;
	clients_disconnect(space->server, space, true);
	source_remove(&space->listener.source);
	directory(dir, space->server, space);
	directory_remove(dir);
	while (*at != space)
		at = &(*at)->next;
	*at = space->next;
	free(space);
}

struct server *server_create(const char *name, uid_t uid, const char *devices, FILE *out)
{
	char dir[PATH_LEN];
	struct server *server, **end = &mps.servers;
	if (!check_name(name, out))
		return NULL;
	if (server_find(name)) {
		fprintf(out, "Server '%s' already exists\n", name);
		return NULL;
	}
	server = allocate(sizeof *server);
	server->uid = uid;
	strcpy(server->name, name);
	snprintf(server->devices, sizeof server->devices, "%s", devices ? devices : "");
	directory(dir, server, NULL);
	if (!create_directory(dir, &server->listener, NULL, out)) {
		free(server);
		return NULL;
	}
	while (*end)
		end = &(*end)->next;
	*end = server;
	server->listener.space = namespace_create(server, "default", out);
	if (server->listener.space && process_start(server, out))
		return server;
	server_delete(server);
	return NULL;
}

void server_delete(struct server *server)
{
	char dir[PATH_LEN];
	struct server **at = &mps.servers;
	clients_disconnect(server, NULL, true);
	process_kill(server);
	while (server->spaces)
		namespace_delete(server->spaces);
	source_remove(&server->listener.source);
	directory(dir, server, NULL);
	directory_remove(dir);
	while (*at != server)
		at = &(*at)->next;
	*at = server->next;
	free(server);
}
