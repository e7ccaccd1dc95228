// Package health decides whether a GPU can be given out. It is a state machine
// for each GPU, fed with what the driver reports: XID events, and probes that
// inspect the GPU's own record of its errors. It yields the fault of each.
//
// It has no clock and does no I/O: every observation carries its time, so the
// same observations always give the same health.
package health
