// Package kubelet offers resources to the kubelet through the device plugin
// API, v1beta1: a gRPC server for each resource, its registration, and
// keeping that registration alive over restarts of the kubelet and the loss
// of sockets.
//
// The kubelet calls Allocate and GetPreferredAllocation in its sync loop and
// without a deadline, and any error of theirs ends a pod for good. So they
// answer from the latest Offer in memory, and nothing that they do can wait:
// no file, no driver, no log line. The Gate decides whether devices may be
// allocated. The package never talks to NVML and never writes a CDI spec; who calls
// Update has put the spec on disk before.
package kubelet
