package allocator

import (
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// A cordoned GPU is unavailable. Other faults take precedence.
func TestCordons(t *testing.T) {
	n := newFixture("0", "1")
	cordon := func(uuids ...string) {
		n.o.Cordoned = map[string]gpu.Fault{}
		for _, uuid := range uuids {
			n.o.Cordoned[uuid] = fault("cordoned: fan")
		}
	}
	cordon("1", "elsewhere")
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable cordoned: fan")
	n.o.Wanted[1].Fault = fault("lost")
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable lost")
	n.o.Wanted[1].Fault = gpu.Fault{}
	n.o.Foreign = []Foreign{{Device: whole("1"), Container: "container web"}}
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable used outside Kubernetes by container web")
	n.o.Foreign = nil
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable cordoned: fan")

	g := NewGate(time.Now)
	g.Advertise(n.ledger)
	if err := g.Allocate("gpu", []string{"1"}, true); err == nil {
		t.Error("granted a cordoned device")
	}
	cordon()
	n.expect(t, 0, "gpu 0 available, gpu 1 available")

	// A GPU that drains because of the config is still granted, unless it is cordoned.
	n.o.Present = []Present{{Device: whole("0")}, {Device: whole("1")}}
	n.o.Wanted = n.o.Wanted[:1]
	n.expect(t, 0, "gpu 0 available, gpu 1 draining config")
	g.Advertise(n.ledger)
	if err := g.Allocate("gpu", []string{"1"}, true); err != nil {
		t.Error(err)
	}
	cordon("1")
	n.expect(t, 0, "gpu 0 available, gpu 1 draining config")
	g.Withdraw(n.ledger)
	if err := g.Allocate("gpu", []string{"1"}, true); err == nil {
		t.Error("granted a cordoned device that drains")
	}
}

func TestCordonedMIGDevice(t *testing.T) {
	o := Observation{Cordoned: map[string]gpu.Fault{"MIG-a": fault("cordoned")}}
	part := mig("0", 1, 0, 0, 4)
	for id, want := range map[string]bool{"MIG-a": true, "MIG-a::1": true, "MIG-b": false, "0": false} {
		if got := !o.cordon(Key{"gpu", id}, part).None(); got != want {
			t.Errorf("%s: cordoned is %v, want %v", id, got, want)
		}
	}
	o.Cordoned = map[string]gpu.Fault{"0": fault("cordoned")}
	if o.cordon(Key{"gpu", "MIG-b"}, part).None() {
		t.Error("a MIG device of a cordoned GPU is not cordoned")
	}
}
