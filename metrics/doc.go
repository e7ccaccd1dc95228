// Package metrics implements the agent's Prometheus metrics. docs/metrics.md lists them.
//
// Metrics of the current state are collected from the agent's status on each scrape, so they always match it. Counters
// are kept by Metrics. The cardinality of labels is bounded by the hardware, the pods that hold devices, and constants.
package metrics
