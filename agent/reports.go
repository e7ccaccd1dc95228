package agent

import (
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// receive records a report of the driver worker, and returns whether it requires a reconcile.
func (l *loop) receive(r driver.Report, at time.Time) bool {
	switch r := r.(type) {
	case driver.Snapshot:
		l.receiveDriver(r, at)
		return true
	case driver.XID:
		return l.receiveXID(r, at)
	case driver.Probes:
		l.receiveProbes(r, at)
		// Not every change of the CDI directory raises an inotify event: a file system may be mounted over it.
		if l.specsStale() || l.filesChanged() || l.classes.stale(l.config.CDI.Classes) ||
			slices.ContainsFunc(l.plan.inventory.GPUs, l.faultChanged) {
			return true
		}
	case driver.Failure:
		l.receiveUnresponsive(r, at)
	}
	return slices.ContainsFunc(l.plan.inventory.GPUs, l.healthChanged)
}

// healthChanged reports whether the GPU or one of its MIG devices became healthy or unhealthy since the last reconcile.
func (l *loop) healthChanged(g gpu.GPU) bool {
	healthy := l.health.Fault(g.UUID).None()
	return healthy != g.Fault.None() || slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool {
		return m.Fault.Code != gpu.FaultGone && (healthy && l.health.Fault(m.UUID).None()) != m.Fault.None()
	})
}

// faultChanged reports whether an unhealthy GPU, or one of its unhealthy MIG devices, has a different fault than
// in the plan. It is called for probes only: otherwise each XID could cause a reconcile.
func (l *loop) faultChanged(g gpu.GPU) bool {
	differs := func(uuid string, planned gpu.Fault) bool {
		now := l.health.Fault(uuid)
		return !planned.None() && !now.None() && planned != now && l.known.Fault(uuid).None()
	}
	if l.plan.driverErr != nil || l.plan.specErr != nil {
		return false // a fault of the node overrides them
	}
	return differs(g.UUID, g.Fault) || g.Fault.None() && slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool {
		return differs(m.UUID, m.Fault)
	})
}

// receiveProbes records probes of GPUs. A probe also applies to the MIG devices of its GPU: a result that clears a
// fault of the GPU also clears that fault of its MIG devices.
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

// receiveUnresponsive records that a GPU does not respond. A failure without a UUID applies to every GPU that is
// present: otherwise the GPUs would be healthy between two crashes of the driver worker.
func (l *loop) receiveUnresponsive(r driver.Failure, at time.Time) {
	for _, g := range l.known.GPUs {
		if r.GPU == g.UUID || r.GPU == "" && !l.missing[g.UUID] {
			l.health.Unresponsive(g.UUID, r.Fault, at)
		}
	}
}

// receiveDriver records the inventory, or the error, that the driver worker reports.
func (l *loop) receiveDriver(r driver.Snapshot, at time.Time) {
	l.driver = &r
	if r.Err != nil {
		return
	}
	l.known = gpu.Retain(l.known, r.Inventory)
	for i := range l.known.GPUs {
		g := &l.known.GPUs[i]
		switch _, present := r.Inventory.Find(g.UUID); {
		case !present:
			l.missing[g.UUID] = true
			l.health.Gone(g.UUID, g.Fault, at)
			g.Fault = l.health.Fault(g.UUID) // with the XID that explains it
		case l.missing[g.UUID]:
			delete(l.missing, g.UUID)
			l.health.Returned(g.UUID, at)
		}
		for _, m := range g.MIGDevices {
			if m.Fault.Code == gpu.FaultGone { // if it is recreated with this UUID, it is a new device
				l.health.Remove(m.UUID)
			}
		}
	}
	l.receiveProbes(r.Probes, at)
}
