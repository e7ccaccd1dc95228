// Package simdriver is a simulated NVIDIA driver: real ELF libraries,
// programs, device nodes and kernel files below a root directory, over a
// libnvidia-ml.so.1 that behaves as NVML does. Programs under test load it
// unmodified, so what is tested is the program that ships.
//
// The state of the driver (its GPUs, their links, MIG devices, events, and the
// faults that calls are to show) lives in the last 64 KiB of the library file
// itself. That file is the one thing that is present wherever the driver is:
// on the host, and bind-mounted under another name in a container. Mounts
// share the inode, so a change written in place is seen everywhere at once,
// by processes that are already running, without a word in their environment.
//
// What the simulation keeps of the real library, because programs depend on it:
//
//   - a process sees the GPUs that were there, and whose device nodes it could
//     open, when it called nvmlInit; a GPU that is added later shows only after
//     nvmlShutdown and nvmlInit. A removed or lost one is still counted, and
//     its calls return NVML_ERROR_GPU_IS_LOST.
//   - MIG devices come and go without a new nvmlInit, and are visible where
//     their capability nodes can be opened.
//   - an event set delivers what happened after the registration, each event
//     once; with a lost GPU in it, a wait with nothing to deliver returns
//     NVML_ERROR_GPU_IS_LOST at once.
//   - a library whose version is not that of the kernel module answers
//     NVML_ERROR_LIB_RM_VERSION_MISMATCH.
//
// Two environment variables exist, for tests only: NVSIM_DEV is the directory
// of the device nodes where it is not /dev, and NVSIM_CALLS a file that counts
// the calls (see Calls).
//
// The package knows nothing of the product, CDI or Kubernetes. Making device
// nodes takes root; compiling takes a C compiler named cc.
package simdriver
