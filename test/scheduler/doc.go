// Package scheduler tests the devices that gpucdi publishes. It calls the allocator of the Kubernetes scheduler and the
// validation of the API server, of the Kubernetes version in go.mod, in the test process; neither component runs.
package scheduler
