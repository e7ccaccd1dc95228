// Package scheduler tests the devices that gpucdi publishes with the allocator of the Kubernetes scheduler and the
// validation of the API server, both of the Kubernetes version in go.mod. Neither runs: claims are allocated in process.
package scheduler
