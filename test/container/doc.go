// Package container runs real containers, with stock runc and crun, on a machine in a box that
// has a simulated driver, from the CDI specs that the shipped program generates there. A spec
// is applied by the CDI library, as containerd and CRI-O apply it.
//
// The images are made by package images, and not all of them have programs: a probe, compiled
// for each, tells from within what can be loaded and opened. That programs find the driver
// without ldconfig is part of what is shown, and that an image reaches nothing of the host.
//
// It needs root and a Debian machine whose programs run on Debian 12. It knows nothing of
// Kubernetes.
package container
