// Package scheduler tests the devices that gpucdi publishes with the allocator of the Kubernetes scheduler and the
// validation of the API server, both of the Kubernetes version in go.mod. Both are called in the test process; neither
// component runs.
package scheduler
