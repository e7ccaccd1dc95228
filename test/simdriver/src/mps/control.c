/*
 * nvidia-cuda-mps-control, protocol 3 of MPS: the daemon, and commands for it. Older protocols, which read commands
 * from standard input, are not simulated.
 */
#define _GNU_SOURCE
#include "daemon.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static char server_program[4096];

static int usage(void)
{
	fprintf(stderr, "Usage: nvidia-cuda-mps-control -p 3 -d|-f [-m]\n"
			"       nvidia-cuda-mps-control [-p 3] MODULE VERB [ARGUMENT...] [--KEY=VALUE...]\n"
			"       nvidia-cuda-mps-control -q|-v\n");
	return 1;
}

static const char *pipe_directory(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	if (dir && *dir)
		return dir;
	return geteuid() ? "/tmp/nvidia-mps" : "/run/nvidia-mps";
}

/* The server is next to this program. */
static void set_server_program(const char *self)
{
	const char *slash = strrchr(self, '/');
	snprintf(server_program, sizeof server_program, "%.*snvidia-cuda-mps-server", slash ? (int)(slash + 1 - self) : 0, self);
	mps.server_program = server_program;
}

static int start_in_background(void)
{
	int ready[2];
	char byte;
	if (pipe2(ready, O_CLOEXEC)) {
		perror("pipe");
		return 1;
	}
	switch (fork()) {
	case -1:
		perror("fork");
		return 1;
	case 0:
		setsid();
		close(ready[0]);
		return daemon_run(ready[1]);
	default:
		close(ready[1]);
		return read(ready[0], &byte, 1) == 1 ? 0 : 1;
	}
}

/* Sends a command to the daemon, and prints its output. */
static int send_command(char **words, int n)
{
	char text[LINE_LEN] = "", buffer[4096];
	size_t length = 0;
	for (int i = 0; i < n; i++) {
		if (!*words[i] || words[i][strcspn(words[i], " \n")])
			return usage();
		length += snprintf(text + length, sizeof text - length, "%s%c", words[i], i < n - 1 ? ' ' : '\n');
		if (length >= sizeof text)
			return usage();
	}
	int fd = mps_connect(pipe_directory());
	if (fd < 0) {
		fprintf(stderr, "Cannot connect to the MPS control daemon at %s/control: %s\n", pipe_directory(), strerror(errno));
		return 1;
	}
	FILE *daemon = write(fd, text, length) == (ssize_t)length ? fdopen(fd, "r") : NULL;
	int status;
	if (!daemon || fscanf(daemon, "%d", &status) != 1 || fgetc(daemon) != ' ') {
		fprintf(stderr, "The MPS control daemon has closed the connection\n");
		return 1;
	}
	while ((length = fread(buffer, 1, sizeof buffer, daemon)))
		fwrite(buffer, 1, length, status ? stderr : stdout);
	return status;
}

int main(int argc, char **argv)
{
	bool background = false, foreground = false, quits = false;
	const char *protocol = "";
	for (int opt; (opt = getopt(argc, argv, "+dfmp:qv")) != -1;)
		switch (opt) {
		case 'd': background = true; break;
		case 'f': foreground = true; break;
		case 'm': mps.multiuser = true; break;
		case 'p': protocol = optarg; break;
		case 'q': quits = true; break;
		case 'v': puts("nvidia-cuda-mps-control: simulated NVIDIA driver"); return 0;
		default: return usage();
		}
	if (*protocol && strcmp(protocol, "3"))
		return usage();
	if (quits)
		return send_command((char *[]){"daemon", "quit"}, 2);
	if (!background && !foreground)
		return optind < argc ? send_command(argv + optind, argc - optind) : usage();
	if (!*protocol || optind < argc || (background && foreground) || strlen(pipe_directory()) >= sizeof mps.dir)
		return usage();
	strcpy(mps.dir, pipe_directory());
	set_server_program(argv[0]);
	return background ? start_in_background() : daemon_run(-1);
}
