// Package driver observes a node's NVIDIA driver. Run supervises a driver worker and yields its reports; Read returns a
// single Snapshot.
//
// NVML is loaded in the driver worker only, because a faulty driver can block a call for minutes or crash the process
// that made it. Package gpu/nvml implements the worker.
//
// The package is independent of CDI and Kubernetes.
package driver
