// Package driver follows a node's driver: Run keeps a process at it, which alone
// calls into it, and yields what that one tells; Read asks once.
//
// NVML is a global of its process, and a driver in trouble can hold a call for
// minutes or end who makes it; a process can be lost, the agent cannot. What
// runs in that process is gpu/nvml.
//
// The package knows neither CDI nor Kubernetes.
package driver
