// Package container runs containers with stock runc and crun, in a box with a simulated driver. The CDI library injects
// the devices, as in containerd and CRI-O, from specs that the shipped gpucdi generates in the box.
//
// The images come from package images. Some contain no programs, so a probe, compiled for each, reports from inside
// the container which libraries can be loaded and which files opened. The tests also show which programs find the
// driver without ldconfig, and that no image reaches the host.
//
// Other tests run such containers with nerdctl, podman and docker. The tests require root and a Debian machine with a
// glibc that is not newer than Debian 12's: programs compiled on it run in the containers. They do not involve
// Kubernetes.
package container
