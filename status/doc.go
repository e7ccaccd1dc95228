// Package status defines the status of a node as the agent reports it: GPUs with
// their health and allocations, and the state of each component between the
// driver and the kubelet.
//
// Server serves a Node over HTTP, beside probes and metrics; Fetch is its client.
package status
