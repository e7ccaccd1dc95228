// Package container runs containers with stock runc and crun, in a box with a simulated driver, from CDI specs that the
// shipped gpucdi generates there. The CDI library applies the specs, as in containerd and CRI-O.
//
// The images come from package images. Some contain no programs, so a probe, compiled for each, reports from inside
// the container which libraries can be loaded and which files opened. The tests also show that programs find the
// driver without ldconfig, and that no image reaches the host.
//
// Other tests run such containers with nerdctl, podman and docker. The tests require root and a Debian machine whose
// programs run on Debian 12. They do not involve Kubernetes.
package container
