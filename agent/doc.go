// Package agent is the reconcile loop: it owns the state of a node's GPUs and
// is the only place where the other packages meet. It is a pipeline:
//
//	sources → observation → ledger → apply (withdraw, write the spec, advertise) → views
//
// One goroutine runs all stages but the ends. Sources (source.go) run beside it and wake it.
// After each step it publishes a snapshot, from which the views follow; nothing reads a view back.
package agent
