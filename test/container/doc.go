// Package container runs real containers, with stock runc and crun, on a machine in a box that
// has a simulated driver, from the CDI specs that the shipped program generates there. A spec
// is applied by the CDI library, as containerd and CRI-O apply it.
//
// The containers are Debian 12, which debootstrap makes: that programs find the driver by
// glibc's built-in directories, without ldconfig, is part of what is shown.
//
// It needs root and a Debian machine whose programs run on Debian 12. It knows nothing of
// Kubernetes.
package container
