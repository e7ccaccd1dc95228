// Package gpu is the model of a node's GPUs: their properties, their links, and the faults that make them
// unallocatable. Package gpu/driver reports them as an Inventory, which is immutable and therefore safe for concurrent
// use.
//
// The package does no I/O and is independent of CDI and Kubernetes.
package gpu
