// Package status defines the status of a node as the agent reports it: GPUs with their health and allocations, and the
// state of each component between the driver and the kubelet.
//
// Server serves the status, probes and metrics over HTTP. Fetch and FetchMetrics are its clients.
package status
