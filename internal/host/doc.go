// Package host accesses the node: it reads files below a root, finds the driver root, the kubelet's pod resources
// socket and the cgroups of pods, writes files durably, loads kernel modules, and bounds the time and the output of
// programs.
//
// The root is "/" on the node, and a mount of it in the agent's container. Paths are resolved as after a chroot:
// absolute symlinks and ".." stay below the root.
package host
