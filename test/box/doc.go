// Package box makes a machine in namespaces on this machine: mounts, processes, network,
// host name, IPC and cgroups of its own, over the machine's /usr and /etc. What runs in it, a
// kubelet and a container runtime for instance, meets nothing of a kubelet or a runtime that
// the machine already has, and everything in it ends with it.
//
// A box is held by a process of its own (boxinit), which takes it away when the owner closes
// it and also when the owner crashes. With Config.Keep it outlives its owner until that
// process gets a SIGTERM.
//
// It needs root and the go command, and to be called from within this module. It knows
// nothing of Kubernetes, containers or GPUs; a simulated driver is installed by writing below
// Root into a box that was started with Config.Simulated.
package box
