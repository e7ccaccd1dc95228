// Package nvml reads a node's GPUs through the driver's own library. It is the
// only importer of go-nvml.
//
// Read asks once, in this process. Run keeps watch: it lets a process of its
// own, which calls Serve, hold the driver, and yields what that one reports.
// NVML is a global of its process, and a driver in trouble can hold a call for
// minutes or end who makes it; a process can be lost, the agent cannot.
//
// The package knows neither CDI nor Kubernetes.
package nvml
