// Package health determines the faults of GPUs and MIG devices. It is a state machine per device. Its inputs are XID
// events, probes of the error state, calls that hang or crash the driver worker, and the loss and return of GPUs.
//
// It has no clock and does no I/O. Each input has a time, so the same inputs always give the same result.
package health
