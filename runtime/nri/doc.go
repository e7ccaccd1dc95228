// Package nri is a plugin of the Node Resource Interface (NRI) of containerd and CRI-O, through which a container runtime
// calls it for each container before it is created, and before it starts. A runtime proceeds without a plugin that is
// absent or slow, so nothing that must hold may depend on it.
package nri
