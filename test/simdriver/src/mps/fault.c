/* Faults that tests set: empty files in the directory of the daemon or of a server. */
#include "daemon.h"

static const char *const faults[] = {FAULT_WEDGED, FAULT_COMMANDS, FAULT_TERMINATE, FAULT_VANISHES};

static void path_of(char out[2 * PATH_LEN], const char *dir, const char *fault)
{
	snprintf(out, 2 * PATH_LEN, "%s/nvsim-%s", dir, fault); /* not a valid name of a server or namespace */
}

static bool is_in(const char *dir, const char *fault)
{
	char path[2 * PATH_LEN];
	path_of(path, dir, fault);
	return access(path, F_OK) == 0;
}

bool fault_is_set(const char *fault, const struct server *server)
{
	char dir[PATH_LEN];
	if (is_in(mps.dir, fault))
		return true;
	if (!server)
		return false;
	directory(dir, server, NULL);
	return is_in(dir, fault);
}

void faults_remove(const char *dir)
{
	char path[2 * PATH_LEN];
	for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
		path_of(path, dir, faults[i]);
		unlink(path);
	}
}
