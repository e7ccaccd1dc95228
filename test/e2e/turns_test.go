package e2e

import (
	"slices"
	"sync"
	"testing"
)

// nodesAtOnce is the number of nodes that run at the same time. Two CPUs are then rarely idle. More nodes take longer in
// total: the more processes run, the more CPU time the start of another one takes.
const nodesAtOnce = 3

// A turn is a test that waits to start.
type turn struct {
	minutes int
	start   chan struct{}
}

// turns are the tests that wait, the longest first, so that none of them starts late and runs alone at the end.
var turns = struct {
	sync.Mutex
	waiting []turn
	free    int
}{free: nodesAtOnce}

// inTurn lets a test run in parallel with others, and waits until fewer than nodesAtOnce of them run. It must be called
// first, and replaces t.Parallel. The test takes about the given number of minutes.
func inTurn(t *testing.T, minutes int) {
	t.Helper()
	own := turn{minutes, make(chan struct{})}
	turns.waiting = append(turns.waiting, own) // no other test runs until all have called t.Parallel
	slices.SortStableFunc(turns.waiting, func(a, b turn) int { return b.minutes - a.minutes })
	t.Parallel()
	pass(0)
	<-own.start
	t.Cleanup(func() { pass(1) })
}

// pass starts waiting tests after a number of tests have ended.
func pass(ended int) {
	turns.Lock()
	defer turns.Unlock()
	turns.free += ended
	for turns.free > 0 && len(turns.waiting) > 0 {
		close(turns.waiting[0].start)
		turns.waiting = turns.waiting[1:]
		turns.free--
	}
}
