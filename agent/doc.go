// Package agent is the reconcile loop. It owns the state of a node's GPUs and wires the other packages into a pipeline:
//
//	sources → observation → ledger → apply (withdraw, write the spec, advertise) → views
//
// One goroutine, the loop, runs the stages between sources and views. Each source (source.go) runs in a separate
// goroutine and triggers the loop. The loop handles a trigger in one step, such as a reconcile, and then publishes a
// snapshot, from which the views are computed; views are never read back as state.
package agent
