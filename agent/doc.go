// Package agent is the reconcile loop. It owns the state of a node's GPUs and wires the other packages into
// a pipeline:
//
//	sources → observation → ledger → apply (withdraw, write the spec, advertise) → views
//
// One goroutine runs the stages between sources and views. Sources (source.go) run in goroutines of their own
// and trigger it. After each step it publishes a snapshot, from which the views are computed; views are never
// read back as state.
package agent
