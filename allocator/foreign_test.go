package allocator

import (
	"testing"
	"time"
)

// A device that a container outside Kubernetes uses is unavailable until the container ends, as is everything that
// overlaps it.
func TestForeignHolders(t *testing.T) {
	n := newFixture("0", "1")
	n.o.Foreign = []Foreign{{Device: whole("1"), Container: "container web"}}
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable used outside Kubernetes by container web")
	n.o.Foreign = nil
	n.expect(t, 0, "gpu 0 available, gpu 1 available")

	g := NewGate(time.Now)
	g.Advertise(n.ledger)
	n.o.Foreign = []Foreign{{Device: mig("0", 1, 0, 0, 4), Container: "container web"}}
	n.expect(t, 0, "gpu 0 unavailable used outside Kubernetes by container web, gpu 1 available")
	g.Withdraw(n.ledger)
	if err := g.Allocate("gpu", []string{"0"}, true); err == nil {
		t.Error("granted a device that a foreign container uses")
	}

	n.o.Wanted[0].Fault = fault("lost")
	n.expect(t, 0, "gpu 0 unavailable lost, gpu 1 available") // a fault of the device takes precedence
}
