/*
 * nvidia-cuda-mps-server: the process of an MPS server, started by the control daemon with the name of the server and
 * the UUIDs of its devices. Clients connect to the daemon. As the real server, the process has a context on each device
 * before the first client, so that no other program can use the device in the mode EXCLUSIVE_PROCESS. It ends if a
 * device does not exist or cannot be used, or when the daemon closes the socket that is its standard input.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int devices_exist(const char *list)
{
	nvmlDevice_t device;
	char uuids[strlen(list) + 1];
	unsigned n = 0;
	if (nvml_load() || nvml.nvmlInit_v2() != NVML_SUCCESS || nvml.nvmlDeviceGetCount_v2(&n) != NVML_SUCCESS || !n)
		return 0;
	strcpy(uuids, list);
	for (char *uuid = strtok(uuids, ","); uuid; uuid = strtok(NULL, ","))
		if (nvml.nvmlDeviceGetHandleByUUID(uuid, &device) != NVML_SUCCESS)
			return 0;
	return 1;
}

static int occupy(const char *uuids)
{
	void *context;
	int n;
	mps_become_server(uuids);
	if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&n) != CUDA_SUCCESS)
		return 0;
	for (int device = 0; device < n; device++)
		if (cuCtxCreate_v2(&context, 0, device) != CUDA_SUCCESS)
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
	if (write(STDIN_FILENO, &byte, 1) != 1 || !devices_exist(argv[2]) || !occupy(argv[2]))
		return 1;
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
