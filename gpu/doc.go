// Package gpu is the model of a node's GPUs: their properties, how they are linked, and the faults that make them
// unallocatable. An Inventory is immutable, so it is safe for concurrent use. Package gpu/driver reports it.
//
// The package does no I/O and is independent of CDI and Kubernetes.
package gpu
