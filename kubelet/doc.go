// Package kubelet advertises resources to the kubelet through the device plugin API, v1beta1. Each resource has a gRPC
// server and a registration that is restored after kubelet restarts and the loss of sockets. The package also reads
// allocations from the pod resources API and the kubelet's checkpoints of devices and ResourceClaims.
//
// The kubelet calls Allocate and GetPreferredAllocation in its sync loop without a deadline, and any error fails
// the pod permanently. Both are therefore answered from the latest Offer in memory and never block on files, the
// driver or the log. The Gate decides whether devices may be allocated. The package neither calls NVML nor writes
// CDI specs: the caller of Update must have written the spec to disk.
package kubelet
