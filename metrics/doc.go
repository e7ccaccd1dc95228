// Package metrics shows Prometheus what the agent knows and what happened in
// it. docs/metrics.md lists all of them.
//
// What the agent knows is read from its status when it is scraped, so the two
// cannot differ; what happens is counted here. Every label has few values: those
// of the hardware, of the pods that hold devices, and words that this program
// chooses.
package metrics
