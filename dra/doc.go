// Package dra is the kubelet plugin of a DRA driver: it registers with the kubelet, prepares and unprepares
// ResourceClaims, and reports the health of their devices. It also builds the devices that package cluster publishes in
// the ResourceSlices of the node.
//
// The kubelet calls NodePrepareResources in its pod worker, with a timeout of 45 s, and retries a refused claim only
// after a minute or more. A claim therefore waits for a device that another holder is about to release. The Gate of
// package allocator decides, from its ledger, whether a claim gets its devices. This package neither calls NVML nor
// writes CDI specs.
//
// A prepared claim is recorded in a file before the kubelet gets a response, so that after a restart the agent
// neither gives its devices to another claim nor fails to unprepare it.
package dra
