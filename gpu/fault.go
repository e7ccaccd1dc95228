package gpu

import (
	"cmp"
	"slices"
)

// FaultGone is the Fault of a GPU or MIG device that an earlier reading found
// and the present one does not.
const FaultGone = "gone: the driver no longer lists it"

// Retain returns now with the GPUs and MIG devices of earlier that it lacks
// added at the end, with the fault of the unreadable one that has their index
// now, or FaultGone. A pod may still hold such a device, and the kubelet must
// never lose one that is allocated.
func Retain(earlier, now *Inventory) *Inventory {
	kept := *now
	kept.GPUs = slices.Clone(now.GPUs)
	for _, g := range earlier.GPUs {
		i := slices.IndexFunc(now.GPUs, func(n GPU) bool { return n.UUID == g.UUID })
		if i >= 0 {
			kept.GPUs[i].MIGDevices = retain(g.MIGDevices, now.GPUs[i].MIGDevices)
			continue
		}
		g.Fault, g.Links = now.absence(g.Index), nil
		if g.Fault == FaultGone {
			g.MIGDevices = retain(g.MIGDevices, nil)
		}
		kept.GPUs = append(kept.GPUs, g)
	}
	return &kept
}

// absence is why a GPU that had this index is not among the GPUs.
func (inv *Inventory) absence(index int) string {
	i := slices.IndexFunc(inv.Unreadable, func(u Unreadable) bool { return u.Index == index })
	if i < 0 {
		return FaultGone
	}
	return inv.Unreadable[i].Fault
}

// WithFaults returns the inventory with the GPUs and MIG devices that fault
// names a fault for, by UUID, marked with it. One that has a fault already keeps
// its own, which lies nearer to the cause. A GPU's fault is that of all its MIG
// devices.
func (inv *Inventory) WithFaults(fault func(uuid string) string) *Inventory {
	marked := *inv
	marked.GPUs = slices.Clone(inv.GPUs)
	for i := range marked.GPUs {
		g := &marked.GPUs[i]
		if g.Fault == "" {
			g.Fault = fault(g.UUID)
		}
		g.MIGDevices = slices.Clone(g.MIGDevices)
		for j := range g.MIGDevices {
			m := &g.MIGDevices[j]
			if m.Fault = cmp.Or(m.Fault, g.Fault); m.Fault == "" {
				m.Fault = fault(m.UUID)
			}
		}
	}
	return &marked
}

// Forget returns the inventory without the GPUs and MIG devices that are gone,
// but for those that keep names. A GPU stays with its MIG devices.
func (inv *Inventory) Forget(keep func(uuid string) bool) *Inventory {
	rest := *inv
	rest.GPUs = nil
	for _, g := range inv.GPUs {
		g.MIGDevices = slices.DeleteFunc(slices.Clone(g.MIGDevices), func(m MIGDevice) bool {
			return m.Fault == FaultGone && !keep(m.UUID)
		})
		if g.Fault != FaultGone || len(g.MIGDevices) > 0 || keep(g.UUID) {
			rest.GPUs = append(rest.GPUs, g)
		}
	}
	return &rest
}
