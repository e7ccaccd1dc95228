// Package box runs a simulated machine, a box, in namespaces of this machine: mount, PID, network,
// UTS, IPC and cgroup, with overlays on the machine's /usr and /etc. A kubelet and a container
// runtime in a box do not interfere with the machine's, and all processes in a box end with it.
//
// A keeper process (boxinit) removes the box when its owner closes it or crashes. With
// Config.Keep a box outlives its owner, until its keeper receives a SIGTERM.
//
// The package requires root and the go command, and a working directory within this module, but
// neither Kubernetes, a container runtime nor a GPU. To install a simulated driver, set
// Config.Simulated and write below Box.Root.
package box
