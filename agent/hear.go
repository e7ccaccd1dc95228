package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// hear takes in what the driver said, and returns whether anything has to be
// done about it.
func (n *node) hear(r driver.Report, at time.Time) bool {
	switch r := r.(type) {
	case driver.Reading:
		n.read(r, at)
		return true
	case driver.XID:
		return n.receiveXID(r, at)
	case driver.Probes:
		n.probe(r, at)
		// Not every change of the directory raises an event: a file system may have
		// been mounted over it.
		if n.agent.spec.Touched() || n.classes.touched(n.settings.CDI.Classes) ||
			slices.ContainsFunc(n.inspected.GPUs, n.reworded) {
			return true
		}
	case driver.Telemetry:
		n.agent.view.telemetry.Store((*map[string]gpu.Telemetry)(&r))
		return false
	case driver.Trouble:
		n.doubt(r, at)
	}
	return slices.ContainsFunc(n.inspected.GPUs, n.outdated)
}

// outdated says whether the health of the GPU or of a MIG device in it is no
// longer what the kubelet was told.
func (n *node) outdated(g gpu.GPU) bool {
	healthy := n.health.Fault(g.UUID).None()
	return healthy != g.Fault.None() || slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool {
		return m.Fault.Code != gpu.FaultGone && (healthy && n.health.Fault(m.UUID).None()) != m.Fault.None()
	})
}

// reworded reports whether the GPU or a MIG device in it is listed with another fault than it
// has now. It is called for probes only.
func (n *node) reworded(g gpu.GPU) bool {
	otherwise := func(uuid string, told gpu.Fault) bool {
		now := n.health.Fault(uuid)
		return !told.None() && !now.None() && told != now && n.known.Fault(uuid).None()
	}
	if n.driverErr != nil || n.specErr != nil {
		return false // that is told instead
	}
	return otherwise(g.UUID, g.Fault) || g.Fault.None() && slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool {
		return otherwise(m.UUID, m.Fault)
	})
}

// probe takes in looks at GPUs. Each is one at the GPU's MIG devices too: what
// clears a fault of the GPU clears theirs.
func (n *node) probe(probes driver.Probes, at time.Time) {
	for uuid, p := range probes {
		n.health.Probe(uuid, p, at)
		g, _ := n.known.Find(uuid)
		for _, m := range g.MIGDevices {
			if m.Fault.Code != gpu.FaultGone {
				n.health.Probe(m.UUID, p, at)
			}
		}
	}
}

// doubt takes in trouble with a GPU, or with all that are there: a driver that ends
// who asks it would else be believed for as long as it takes until it does so again.
func (n *node) doubt(r driver.Trouble, at time.Time) {
	for _, g := range n.known.GPUs {
		if r.GPU == g.UUID || r.GPU == "" && !n.away[g.UUID] {
			n.health.Unresponsive(g.UUID, r.Fault, at)
		}
	}
}

// read takes in a reading of the driver.
func (n *node) read(r driver.Reading, at time.Time) {
	defer func() { n.reading = &r }()
	if r.Err != nil {
		if n.reading == nil || n.reading.Err == nil || n.reading.Err.Error() != r.Err.Error() {
			n.logNoDriver(r.Err)
		}
		return
	}
	if was, now := n.known.Driver.Version, r.Inventory.Driver.Version; was != "" && was != now {
		n.agent.events.Record(apiserver.Event{Type: apiserver.Normal, Reason: gpuDriverChanged,
			Message: fmt.Sprintf("the NVIDIA driver is now %s, before %s", now, was)})
	}
	n.known = gpu.Retain(n.known, r.Inventory)
	for _, g := range n.known.GPUs {
		switch _, here := r.Inventory.Find(g.UUID); {
		case !here && !n.away[g.UUID]:
			n.away[g.UUID] = true
			n.health.Gone(g.UUID, g.Fault, at)
		case here && n.away[g.UUID]:
			delete(n.away, g.UUID)
			n.health.Returned(g.UUID, at)
		}
		for _, m := range g.MIGDevices {
			if m.Fault.Code == gpu.FaultGone { // made again, it is a new one
				n.health.Forget(m.UUID)
			}
		}
	}
	n.probe(r.Probes, at)
	n.logReading(r)
}

// logReading logs a reading, unless it says what the one before it said: where a GPU
// ends the process that looks at it, there is one every few seconds.
func (n *node) logReading(r driver.Reading) {
	says := func(r driver.Reading) []any {
		return []any{"driver", r.Inventory.Driver.Version, "cuda", r.Inventory.Driver.CUDA.String(), "root", r.Driver.String(),
			"gpus", len(r.Inventory.GPUs), "unreadable", len(r.Inventory.Unreadable)}
	}
	if before := n.reading; before != nil && before.Err == nil && slices.Equal(says(*before), says(r)) &&
		slices.Equal(before.Inventory.Unreadable, r.Inventory.Unreadable) {
		return
	}
	n.log.Info("driver read", says(r)...)
	for _, u := range r.Inventory.Unreadable {
		n.log.Error("GPU does not answer and cannot be offered", "index", u.Index, "code", u.Fault.Code, "reason", u.Fault.Message, "remedy", u.Fault.Remedy)
	}
}

func (n *node) logNoDriver(err error) {
	var missing *host.NoDriverError
	if errors.As(err, &missing) {
		n.log.Warn("no GPU to offer until a driver comes", "reason", err)
		return
	}
	n.log.Error("no GPU to offer until the driver answers", "err", err)
}
