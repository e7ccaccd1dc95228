package allocator

import (
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// Wants returns the IDs that the outlets of a plan should advertise. durable reports whether a CDI device is on disk
// and verified.
func Wants(resources []*Resource, inv *gpu.Inventory, durable func(cdiName string) bool) []Want {
	var wants []Want
	for _, r := range resources {
		for _, d := range r.Devices {
			want := Want{Key: Key{Outlet: r.Name}, Part: partOf(d, inv), Features: d.Features, Capacity: d.Capacity, Fault: d.Fault}
			want.Ready = !slices.ContainsFunc(d.CDINames, func(name string) bool { return !durable(name) })
			for _, want.ID = range d.IDs() {
				wants = append(wants, want)
			}
		}
	}
	return wants
}

func partOf(d Device, inv *gpu.Inventory) Part {
	if d.ID == MonitorID {
		return monitorPart
	}
	part := Part{GPU: d.GPU, Extent: ExtentWhole}
	if d.instances != wholeGPU {
		g, _ := inv.Find(d.ID)
		m, _ := g.MIGDevice(d.ID)
		part = migPart(d.GPU, m)
	}
	switch {
	case d.Shared():
		part.Share = Share{Class: d.Class, Count: len(d.Replicas)}
	case d.Sharing != "":
		part.Share = Share{Class: d.Class, Unit: d.Sharing}
	}
	return part
}

func migPart(uuid string, m gpu.MIGDevice) Part {
	return Part{
		GPU: uuid, Extent: ExtentMIG,
		GPUInstance: m.GPUInstance, ComputeInstance: m.ComputeInstance, Placement: m.Placement,
	}
}

// MIGPart returns the part of the MIG device with a UUID; the zero Part if the inventory lacks it.
func MIGPart(inv *gpu.Inventory, uuid string) Part {
	g, _ := inv.Find(uuid)
	m, found := g.MIGDevice(uuid)
	if !found {
		return Part{}
	}
	return migPart(g.UUID, m)
}

// PresentIn returns the GPUs and MIG devices of an inventory with their faults. It omits GPUs in MIG mode, which
// containers use only through MIG devices, and devices that are gone.
func PresentIn(inv *gpu.Inventory) []Present {
	var present []Present
	for _, g := range inv.GPUs {
		if g.Fault.Code != gpu.FaultGone && g.MIG != gpu.MIGEnabled {
			present = append(present, Present{Part{GPU: g.UUID, Extent: ExtentWhole}, g.Fault})
		}
		for _, m := range g.MIGDevices {
			if m.Fault.Code != gpu.FaultGone {
				present = append(present, Present{migPart(g.UUID, m), m.Fault})
			}
		}
	}
	return present
}
