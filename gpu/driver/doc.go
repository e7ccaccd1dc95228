// Package driver observes a node's NVIDIA driver. Run yields reports until its context ends; Read returns a single
// Snapshot. Settings reads and changes settings of GPUs through the worker of Run. TimeSlicer sets time slices with the
// driver's nvidia-smi.
//
// Run and Read run the driver worker, gpucdi-nvml, which is the only program of gpucdi that loads NVML: a faulty driver
// can block a call for minutes or crash the process that made it. Package gpu/nvml implements the worker.
//
// The package is independent of CDI and Kubernetes.
package driver
