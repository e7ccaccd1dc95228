// Package gpu is the model of a node's GPUs: what they are, how they are
// linked, and the faults for which one cannot be allocated. An Inventory is built once, by
// gpu/driver, and is never changed afterwards, so any number of goroutines may
// read it.
//
// It does no I/O and knows neither CDI nor Kubernetes.
package gpu
