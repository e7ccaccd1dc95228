// Package health decides whether a GPU can be given out. It is a state machine
// for each GPU, fed with what the driver reports: XID events, and probes that
// look at the GPU's own record of its errors. It says what is wrong, since
// when, and what would heal it.
//
// It has no clock and does no I/O: every observation carries its time, so the
// same observations always give the same health.
package health
