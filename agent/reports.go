package agent

import (
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// receive records a report of the driver worker, and returns whether it requires a
// reconcile.
func (l *loop) receive(r driver.Report, at time.Time) bool {
	switch r := r.(type) {
	case driver.Reading:
		l.receiveReading(r, at)
		return true
	case driver.XID:
		return l.receiveXID(r, at)
	case driver.Probes:
		l.receiveProbes(r, at)
		// Not every change of the directory raises an event: a file system may have
		// been mounted over it.
		if l.spec.Touched() || l.classes.touched(l.config.CDI.Classes) ||
			slices.ContainsFunc(l.plan.inventory.GPUs, l.faultChanged) {
			return true
		}
	case driver.Trouble:
		l.receiveTrouble(r, at)
	}
	return slices.ContainsFunc(l.plan.inventory.GPUs, l.healthChanged)
}

// healthChanged reports whether the GPU or a MIG device in it has become healthy or
// unhealthy since the plan.
func (l *loop) healthChanged(g gpu.GPU) bool {
	healthy := l.health.Fault(g.UUID).None()
	return healthy != g.Fault.None() || slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool {
		return m.Fault.Code != gpu.FaultGone && (healthy && l.health.Fault(m.UUID).None()) != m.Fault.None()
	})
}

// faultChanged reports whether the GPU or a MIG device in it has another fault than in the
// plan. It is called for probes only.
func (l *loop) faultChanged(g gpu.GPU) bool {
	another := func(uuid string, planned gpu.Fault) bool {
		now := l.health.Fault(uuid)
		return !planned.None() && !now.None() && planned != now && l.known.Fault(uuid).None()
	}
	if l.plan.driverErr != nil || l.plan.specErr != nil {
		return false // that is the fault of all
	}
	return another(g.UUID, g.Fault) || g.Fault.None() && slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool {
		return another(m.UUID, m.Fault)
	})
}

// receiveProbes records probes of GPUs. Each is one of the GPU's MIG devices too: what
// clears a fault of the GPU clears theirs.
func (l *loop) receiveProbes(probes driver.Probes, at time.Time) {
	for uuid, p := range probes {
		l.health.Probe(uuid, p, at)
		g, _ := l.known.Find(uuid)
		for _, m := range g.MIGDevices {
			if m.Fault.Code != gpu.FaultGone {
				l.health.Probe(m.UUID, p, at)
			}
		}
	}
}

// receiveTrouble records trouble with a GPU, or with all that are present: a driver that
// ends its callers would otherwise be trusted until it does so again.
func (l *loop) receiveTrouble(r driver.Trouble, at time.Time) {
	for _, g := range l.known.GPUs {
		if r.GPU == g.UUID || r.GPU == "" && !l.away[g.UUID] {
			l.health.Unresponsive(g.UUID, r.Fault, at)
		}
	}
}

// receiveReading records a reading of the driver.
func (l *loop) receiveReading(r driver.Reading, at time.Time) {
	l.reading = &r
	if r.Err != nil {
		return
	}
	l.known = gpu.Retain(l.known, r.Inventory)
	for _, g := range l.known.GPUs {
		switch _, here := r.Inventory.Find(g.UUID); {
		case !here && !l.away[g.UUID]:
			l.away[g.UUID] = true
			l.health.Gone(g.UUID, g.Fault, at)
		case here && l.away[g.UUID]:
			delete(l.away, g.UUID)
			l.health.Returned(g.UUID, at)
		}
		for _, m := range g.MIGDevices {
			if m.Fault.Code == gpu.FaultGone { // made again, it is a new one
				l.health.Forget(m.UUID)
			}
		}
	}
	l.receiveProbes(r.Probes, at)
}
