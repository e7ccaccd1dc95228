// Package node runs a Kubernetes node in a box: the released etcd, control plane, container runtime and kubelet, in
// namespaces on one machine (package box). The container runtime is stock: no RuntimeClass, no hook, default CDI
// settings.
//
// Pods reach each other and the API server through the box's network, and nothing else: images are imported, never
// pulled.
//
// The package is independent of GPUs and of the agent, except for AgentManifest. Programs and images come from packages
// tools and images.
package node
