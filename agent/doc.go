// Package agent is the reconcile loop: it owns the state of a node's GPUs and
// is the only place where the rooms meet. One goroutine compares what should
// be, from the driver's latest reading and the config, with what is, the spec
// on disk and what the kubelet was told, and puts the difference right.
//
// Everything else that runs only wakes it.
package agent
