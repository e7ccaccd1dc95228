// Package simdriver is a simulated NVIDIA driver: ELF libraries, programs,
// device nodes and kernel files below a root directory, with a
// libnvidia-ml.so.1 that implements NVML. Unmodified programs load it, so tests
// exercise the binaries that ship.
//
// The state of the driver (GPUs, links, MIG devices, events and injected
// faults) is stored in the last 96 KiB of the library file itself. That file is
// present wherever the driver is: on the host, and bind-mounted under another
// name in a container. All mounts share the inode, so running processes
// observe a change that is written in place, without environment variables.
//
// The simulation implements the behavior of NVML that programs depend on:
//
//   - A process sees the GPUs that were present, and whose device nodes it could
//     open, when it called nvmlInit. A GPU that is added later appears after
//     nvmlShutdown and nvmlInit. A removed or lost GPU is still counted, and
//     its calls return NVML_ERROR_GPU_IS_LOST.
//   - MIG devices appear and disappear without a new nvmlInit, and are visible
//     if their capability nodes can be opened.
//   - An event set delivers each event after the registration once. If it
//     contains a lost GPU and has no event, a wait returns
//     NVML_ERROR_GPU_IS_LOST immediately.
//   - The compute mode limits the processes that have a CUDA context on a GPU, in
//     all containers. It is reset when the driver is unloaded.
//   - A library whose version differs from the kernel module's returns
//     NVML_ERROR_LIB_RM_VERSION_MISMATCH.
//
// Drivers since 615 have protocol 3 of MPS: nvidia-cuda-mps-control is both the
// daemon and the program that sends commands to it, and nvidia-cuda-mps-server is
// the process of a server.
//
//   - Each server and namespace has a directory with a socket, which is removed
//     with it, or when the daemon stops. Those of a killed daemon are removed when
//     the next one starts. A server whose allowed devices do not exist ends after
//     its creation has succeeded. One whose process is killed has the status Fault
//     until it is deleted.
//   - Only root can change anything; all users can list. Peers in PID namespaces
//     that are not visible to the daemon are refused. Without -m, clients of users
//     other than the server's are also refused.
//   - A program that reaches the socket in CUDA_MPS_PIPE_DIRECTORY is a client. It
//     can use the devices that the server allows, and the lower of the namespace's
//     and its own percentage of the multiprocessors, in pairs. Its calls fail when
//     the server ends or the client is terminated. Other programs do not use MPS.
//   - In mode EXCLUSIVE_PROCESS, the clients of a server count as one process.
//   - The daemon appends each command with the UID of its sender to control.log in
//     CUDA_MPS_LOG_DIRECTORY: "uid=0 server create a".
//
// SetMPSFault makes clients or commands hang, or servers vanish. Limits of pinned
// memory are listed but not enforced.
//
// Tests can set two environment variables: NVSIM_DEV is the directory of the
// device nodes (default /dev), and NVSIM_CALLS the file in which NVML calls are
// counted (see Calls).
//
// Another process can open an installed driver and change it (see Open). For this, the state is also stored in a file
// below root, which is written first, so that the next change completes an interrupted one.
//
// The package is independent of gpucdi, CDI and Kubernetes. Creating device
// nodes requires root; compiling requires a C compiler named cc.
package simdriver
