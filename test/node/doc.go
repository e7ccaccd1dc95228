// Package node runs Kubernetes in a box: etcd, the control plane, a container runtime and a kubelet,
// each the real program, on one machine in namespaces (package box). The container runtime is
// stock: no runtime class, no hook, and CDI as it comes.
//
// Pods have a network of the box's own, on which they reach each other and the API server,
// and nothing beyond: images are imported, never pulled.
//
// The package knows nothing of GPUs. Programs and images come from packages tools and images.
package node
