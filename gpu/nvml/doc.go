// Package nvml reads a node's GPUs through the driver's own library. It is the
// only importer of go-nvml, and only one goroutine of a process may call it:
// NVML is a global of the process, and a driver in trouble can hold a call for
// minutes.
//
// It knows neither CDI nor Kubernetes.
package nvml
