package allocator

import (
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// lateWorld returns a world in which the scheduler has allocated the GPU to the claim of a pod after it had moved to the
// device plugin. first are actions between the move and the allocation.
func lateWorld(t *testing.T, first string) *world {
	t.Helper()
	w := newWorld()
	perform(t, w, "configure 5; rounds 2")
	stale := w.scheduled
	perform(t, w, "configure 0; rounds 7")
	perform(t, w, first)
	if e, found := w.ledger.Entry(keys[sliceKey].Key); found {
		t.Fatalf("the GPU is in the slice: %+v", e)
	}
	current := w.scheduled
	w.scheduled = stale
	perform(t, w, "schedule 0")
	w.scheduled = current
	return w
}

func perform(t *testing.T, w *world, script string) {
	t.Helper()
	actions, err := parseScript(script)
	if err != nil {
		t.Fatal(err)
	}
	if w.doAll(actions); w.violation != "" {
		t.Fatalf("%s: %s", script, w.violation)
	}
}

// claimPod returns the pod that has a claim.
func (w *world) claimPod() *pod {
	for i := range w.pods {
		if w.pods[i].claim != 0 {
			return &w.pods[i]
		}
	}
	return &pod{}
}

// pluginState returns the state of the GPU in the device plugin; empty if that does not have it.
func (w *world) pluginState() State {
	e, _ := w.ledger.Entry(keys[0].Key)
	return e.State
}

func TestLateClaim(t *testing.T) {
	w := lateWorld(t, "configure 0")
	perform(t, w, "rounds 7")
	if p := w.claimPod(); p.stage != admitted {
		t.Fatalf("the claim is not prepared: %+v", p)
	}
	if state := w.pluginState(); state == StateAvailable {
		t.Errorf("the device plugin offers the GPU")
	}
	perform(t, w, "end 0; rounds 7; rounds 7")
	if state := w.pluginState(); state != StateAvailable {
		t.Errorf("after the pod has ended, the GPU is %q in the device plugin", state)
	}
}

func TestLateClaimWaitsForPod(t *testing.T) {
	w := lateWorld(t, "create 0; rounds 2")
	perform(t, w, "rounds 7")
	if p := w.claimPod(); p.stage != selected {
		t.Fatalf("the claim is prepared while a pod has its GPU: %+v", p)
	}
	for i := range uint8(podSlots) {
		if w.pods[i].claim == 0 {
			w.end(i)
		}
	}
	perform(t, w, "rounds 7; rounds 7")
	if p := w.claimPod(); p.stage != admitted {
		t.Fatalf("after the pod has ended, the claim is not prepared: %+v", p)
	}
}

// A claim that is no longer needed keeps its GPU from the device plugin for requestPeriod.
func TestLateClaimDeleted(t *testing.T) {
	w := lateWorld(t, "create 0; rounds 2")
	perform(t, w, "prepare 0; rounds 1")
	if state := w.pluginState(); state != StateDraining {
		t.Fatalf("the GPU is %q in the device plugin", state)
	}
	for i := range uint8(podSlots) {
		if w.pods[i].claim != 0 {
			w.force(i)
			w.stop(i)
		}
	}
	for range int(requestPeriod/tick) + 2 {
		perform(t, w, "rounds 0")
	}
	if state := w.pluginState(); state != StateAvailable {
		t.Errorf("after the claim was deleted, the GPU is %q in the device plugin", state)
	}
}

// A requested device with a fault stays in the slice while Prepare is repeated, instead of moving back and forth.
func TestRequestOfFaultyDevice(t *testing.T) {
	s := newSliceAgent(t)
	slice, plugin := s.o.Wanted[0], s.o.Wanted[0]
	plugin.Outlet = GPUResource
	slice.Fault = gpu.Fault{Code: gpu.XIDFault(79), Message: "XID 79"}
	follow := func() {
		t.Helper()
		s.o.Wanted[0] = plugin
		if requested, _ := s.gate.Requested(); len(requested) > 0 {
			s.o.Wanted[0] = slice
		}
		s.o.Pool = Pool{Acknowledged: s.now}
		s.next()
		s.gate.Close(s.todo.Close)
	}
	s.o.Wanted[0] = plugin
	s.o.Allocations = &Allocations{Requested: epoch.Add(time.Hour)}
	for range 30 {
		follow()
	}
	s.refuses(claim("a"), ErrHeld, "was allocated after it had left the ResourceSlices")
	for i := range int(3 * requestPeriod / time.Second) {
		follow()
		if i > 0 && i%60 == 0 { // the plugin no longer lists the GPU
			s.refuses(claim("a"), ErrUnhealthy, "XID 79")
		}
	}
	if e, _ := s.ledger.Entry(Key{SliceOutlet, gpu0}); e.Fault.None() {
		t.Errorf("the entry of the slice is %+v", e)
	}
}
