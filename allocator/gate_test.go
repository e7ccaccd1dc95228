package allocator

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// ledgerOf returns a ledger of one outlet with entries in these states, by ID.
func ledgerOf(states map[string]State) Ledger {
	var n next
	for id, state := range states {
		n.add([]Entry{{Key: Key{"gpu", id}, State: state, Part: Part{GPU: id, Extent: ExtentWhole}, accepts: state == StateAvailable}})
	}
	return n.Ledger
}

func TestGateGrantsAllOrNothing(t *testing.T) {
	g := NewGate(time.Now)
	l := ledgerOf(map[string]State{"0": StateAvailable, "1": StateAvailable, "2": StateWaiting})
	if err := g.Allocate("gpu", []string{"0"}, true); !errors.Is(err, ErrUnknown) {
		t.Errorf("a new gate grants: %v", err)
	}
	g.Withdraw(l)
	if err := g.Allocate("gpu", []string{"0"}, true); !errors.Is(err, ErrUnknown) {
		t.Errorf("Withdraw grants: %v", err)
	}
	g.Advertise(l)
	err := g.Allocate("gpu", []string{"0", "2", "3"}, true)
	if !errors.Is(err, ErrUnknown) || !errors.Is(err, ErrUnhealthy) {
		t.Errorf("got %v", err)
	}
	if err := g.Allocate("other", []string{"0"}, true); !errors.Is(err, ErrUnknown) {
		t.Errorf("granted an ID of another outlet: %v", err)
	}
	if grants := g.Grants(); len(grants) > 0 {
		t.Errorf("refusals are recorded as grants: %v", grants)
	}
	if err := g.Allocate("gpu", []string{"0", "1"}, true); err != nil {
		t.Error(err)
	}
	if grants := g.Grants(); grants[Key{"gpu", "0"}].Seq == 0 || grants[Key{"gpu", "1"}].Seq == 0 || len(grants) != 2 {
		t.Errorf("got %v", grants)
	}
}

func TestGateWithdraws(t *testing.T) {
	g := NewGate(time.Now)
	g.Advertise(ledgerOf(map[string]State{"0": StateAvailable}))
	g.Withdraw(ledgerOf(map[string]State{"0": StateUnavailable}))
	if err := g.Allocate("gpu", []string{"0"}, true); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("got %v", err)
	}
	// Only Advertise reopens an entry: at Withdraw the ledger is not saved yet.
	g.Withdraw(ledgerOf(map[string]State{"0": StateAvailable}))
	if err := g.Allocate("gpu", []string{"0"}, true); !errors.Is(err, ErrUnhealthy) || !strings.Contains(err.Error(), "not advertised yet") {
		t.Errorf("got %v", err)
	}
}

func TestGateClosesUngrantedEntries(t *testing.T) {
	g := NewGate(time.Now)
	l := ledgerOf(map[string]State{"0": StateAvailable, "1": StateAvailable})
	g.Advertise(l)
	if err := g.Allocate("gpu", []string{"0"}, true); err != nil {
		t.Fatal(err)
	}
	zero, one := Key{"gpu", "0"}, Key{"gpu", "1"}
	if g.Close([]Closing{{zero, 0}, {one, 0}}) {
		t.Error("closed an entry that was granted")
	}
	if grants := g.Grants(); grants[zero].Closed || !grants[one].Closed {
		t.Errorf("got %v", grants)
	}
	// Sequence numbers are not reused when an entry is removed and added again.
	g.Advertise(Ledger{})
	g.Advertise(l)
	if err := g.Allocate("gpu", []string{"0"}, true); err != nil {
		t.Fatal(err)
	}
	if g.Close([]Closing{{zero, 1}}) {
		t.Error("closed an entry that was granted since")
	}
}

func TestGateCountsEachGrant(t *testing.T) {
	g := NewGate(time.Now)
	g.Advertise(ledgerOf(map[string]State{"0": StateAvailable}))
	var calls sync.WaitGroup
	results := make(chan error, 100)
	for range cap(results) {
		calls.Go(func() { results <- g.Allocate("gpu", []string{"0"}, true) })
	}
	key := Key{"gpu", "0"}
	var seqAtClose uint64
	for closed := false; !closed; {
		seqAtClose = g.Grants()[key].Seq
		closed = g.Close([]Closing{{key, seqAtClose}})
	}
	calls.Wait()
	close(results)
	var grants uint64
	for err := range results {
		if err == nil {
			grants++
		}
	}
	if last := g.Grants()[key].Seq; last != grants || seqAtClose != last {
		t.Errorf("%d grants, %d counted, closed at %d", grants, last, seqAtClose)
	}
}
