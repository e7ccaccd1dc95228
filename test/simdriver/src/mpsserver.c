/*
 * nvidia-cuda-mps-server: the process of an MPS server, started by the control daemon with the name of the server and
 * the UUIDs of its devices. Clients connect to the daemon. The process ends if a device does not exist, or when the
 * daemon closes the socket that is its standard input.
 */
#include "load.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int devices_exist(char *uuids)
{
	nvmlDevice_t device;
	unsigned n = 0;
	if (nvml_load() || nvml.nvmlInit_v2() != NVML_SUCCESS || nvml.nvmlDeviceGetCount_v2(&n) != NVML_SUCCESS || !n)
		return 0;
	for (char *uuid = strtok(uuids, ","); uuid; uuid = strtok(NULL, ","))
		if (nvml.nvmlDeviceGetHandleByUUID(uuid, &device) != NVML_SUCCESS)
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	char byte = 0;
	if (argc != 3) {
		fprintf(stderr, "%s: started only by nvidia-cuda-mps-control\n", argv[0]);
		return 1;
	}
	if (write(STDIN_FILENO, &byte, 1) != 1 || !devices_exist(argv[2]))
		return 1;
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
