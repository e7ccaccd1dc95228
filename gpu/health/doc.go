// Package health determines the faults of GPUs. It is a state machine per GPU whose inputs are XID events and the
// results of probes, which read the GPU's error state.
//
// It has no clock and does no I/O. Each input has a time, so the same inputs always give the same result.
package health
