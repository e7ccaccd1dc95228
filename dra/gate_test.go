package dra

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// ledgerNode is a node with the agent's ledger and gate. It reconciles every half second.
type ledgerNode struct {
	*node
	gate    *allocator.Gate
	running atomic.Pointer[allocator.Container] // nil if no container runs
}

// newLedgerNode starts an agent with one GPU in the slice. The agent ends with the test.
func newLedgerNode(t *testing.T) *ledgerNode {
	n := &ledgerNode{node: newNode(t), gate: allocator.NewGate(time.Now)}
	n.cfg.Gate = n.gate
	n.driver = New(n.cfg, testLog(t))
	n.service = &service{driver: n.driver, running: t.Context()}
	whole := allocator.Part{GPU: "GPU-0", Extent: allocator.ExtentWhole}
	start := time.Now()
	ledger := allocator.Start(nil, true, start)
	var todo allocator.Todo
	o := allocator.Observation{
		Wanted:     []allocator.Want{{Key: allocator.Key{Outlet: allocator.SliceOutlet, ID: "GPU-0"}, Part: whole, Ready: true}},
		Present:    []allocator.Present{{Device: whole}},
		Checkpoint: &allocator.Checkpoint{Requested: start, Received: start},
		Runtime:    &allocator.Runtime{Requested: start, Received: start},
	}
	reconcile := func() {
		now := time.Now()
		if todo.Runtime {
			o.Runtime = &allocator.Runtime{Requested: now, Received: now}
			if c := n.running.Load(); c != nil {
				o.Runtime.Containers = []allocator.Container{*c}
			}
		}
		o.Grants, o.Claims = n.gate.Grants(), n.gate.Claims()
		for i := range o.Claims {
			o.Claims[i].Parts = make([]allocator.Part, len(o.Claims[i].Devices))
		}
		ledger, todo = allocator.Next(ledger, o, now)
		n.gate.Advertise(ledger)
	}
	reconcile()
	ended := make(chan struct{})
	tick := time.NewTicker(500 * time.Millisecond)
	t.Cleanup(func() { tick.Stop(); close(ended) })
	go func() {
		for {
			select {
			case <-tick.C:
				reconcile()
			case <-ended:
				return
			}
		}
	}()
	return n
}

// A pod is deleted by force and replaced. The claim of the new pod gets the GPU when the first pod's containers are
// gone.
func TestForcedDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLedgerNode(t)
		n.add("a", "0")
		n.add("b", "0")
		n.prepares("a", "0")
		n.running.Store(&allocator.Container{Pod: "pod-uid-a", Part: allocator.Part{GPU: "GPU-0", Extent: allocator.ExtentWhole}})
		prepared := make(chan error, 1)
		go func() {
			_, err := n.prepare("b")
			prepared <- err
		}()
		time.Sleep(2 * time.Second) // until the kubelet unprepares the claim
		n.unprepares("a")
		time.Sleep(5 * time.Second) // until the containers end
		select {
		case err := <-prepared:
			t.Fatalf("prepared while a container uses the GPU, error %v", err)
		default:
		}
		n.running.Store(nil)
		ended := time.Now()
		if err := <-prepared; err != nil {
			t.Error(err)
		}
		if took := time.Since(ended); took > 2*time.Second {
			t.Errorf("prepared %s after the last container ended", took)
		}
		n.recorded("uid-b")
	})
}

// The next agent restores the grant of a prepared claim.
func TestRestoredGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLedgerNode(t)
		n.add("a", "0")
		n.prepares("a", "0")
		next := &ledgerNode{node: n.node, gate: allocator.NewGate(time.Now)}
		next.cfg.Gate = next.gate
		next.driver = New(next.cfg, testLog(t))
		if claims := next.gate.Claims(); len(claims) != 1 || claims[0].UID != "uid-a" || claims[0].Devices[0] != "GPU-0" {
			t.Errorf("the next gate has claims %+v", claims)
		}
	})
}
