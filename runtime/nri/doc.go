// Package nri is a plugin for the Node Resource Interface (NRI) of containerd and CRI-O. The container runtime calls
// the plugin before it creates a container and before it starts one. A runtime proceeds without a plugin that is absent
// or slow, so no guarantee may depend on the plugin.
package nri
