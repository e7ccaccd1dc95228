package gpu

import "slices"

// FaultGone is the Fault of a GPU that an earlier reading found and the
// present one does not.
const FaultGone = "gone: the driver no longer lists this GPU"

// Retain returns now with the GPUs of earlier that it lacks added at the end,
// with the fault of the unreadable one that has their index now, or FaultGone.
// A pod may still hold such a GPU, and the kubelet must never lose a device
// that is allocated.
func Retain(earlier, now *Inventory) *Inventory {
	kept := *now
	kept.GPUs = slices.Clone(now.GPUs)
	for _, g := range earlier.GPUs {
		if _, here := now.Find(g.UUID); here {
			continue
		}
		g.Fault, g.Links = now.absence(g.Index), nil
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

// WithFaults returns the inventory with the GPUs that fault names a fault for
// marked with it. A GPU that has a fault already keeps its own, which lies
// nearer to the cause.
func (inv *Inventory) WithFaults(fault func(GPU) string) *Inventory {
	marked := *inv
	marked.GPUs = slices.Clone(inv.GPUs)
	for i, g := range marked.GPUs {
		if g.Fault == "" {
			marked.GPUs[i].Fault = fault(g)
		}
	}
	return &marked
}

// Without returns the inventory without the GPUs with these UUIDs.
func (inv *Inventory) Without(uuids map[string]bool) *Inventory {
	rest := *inv
	rest.GPUs = slices.DeleteFunc(slices.Clone(inv.GPUs), func(g GPU) bool { return uuids[g.UUID] })
	return &rest
}

// Change is a GPU that came, or whose fault changed.
type Change struct {
	GPU GPU // as it is now
	New bool
}

// Changes says what changed from before to after. A GPU does not leave an
// inventory that is kept with Retain; it gets FaultGone.
func Changes(before, after *Inventory) []Change {
	var changes []Change
	for _, g := range after.GPUs {
		was, known := before.Find(g.UUID)
		if !known || was.Fault != g.Fault {
			changes = append(changes, Change{GPU: g, New: !known})
		}
	}
	return changes
}
