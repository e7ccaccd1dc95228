package e2e

import (
	"sync"
	"testing"
)

// nodesAtOnce is the number of nodes that run at the same time. Two CPUs are then rarely idle. More nodes take longer in
// total: the more processes run, the more CPU time the start of another one takes.
const nodesAtOnce = 3

// turns are the tests that wait for their turn, in the order of the source: the longest first.
var turns = struct {
	sync.Mutex
	waiting []chan struct{}
	free    int
}{free: nodesAtOnce}

// inTurn lets a test run in parallel with others, and waits until fewer than nodesAtOnce of them run. It must be called
// first, and replaces t.Parallel.
func inTurn(t *testing.T) {
	t.Helper()
	turn := make(chan struct{})
	turns.waiting = append(turns.waiting, turn) // one test after the other, until t.Parallel
	t.Parallel()
	pass(0)
	<-turn
	t.Cleanup(func() { pass(1) })
}

// pass starts waiting tests after a number of tests have ended.
func pass(ended int) {
	turns.Lock()
	defer turns.Unlock()
	turns.free += ended
	for turns.free > 0 && len(turns.waiting) > 0 {
		close(turns.waiting[0])
		turns.waiting = turns.waiting[1:]
		turns.free--
	}
}
