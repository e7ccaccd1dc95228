package allocator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// leftResource is the fault of a device that is still there but no longer one of
// the resource's: its GPU is cut anew, or the config has changed.
const leftResource = "no longer offered as this resource"

// Retain returns now with the devices of earlier that it lacks and that a pod
// may hold added to their resources as Left, and without a resource of earlier
// being lost. A device that one of those left can still reach has a fault until
// that one is let go: two pods would share it.
func Retain(earlier, now []*Resource, mayBeHeld func(resource, id string) bool) []*Resource {
	kept := slices.Clone(now)
	for _, before := range earlier {
		i := slices.IndexFunc(kept, func(r *Resource) bool { return r.Name == before.Name })
		if i < 0 {
			i, kept = len(kept), append(kept, newResource(before.Name, nil, nil))
		}
		kept[i] = kept[i].with(before.Devices, mayBeHeld)
	}
	for i, r := range kept {
		kept[i] = r.faulty(func(d Device) string { return contested(d, kept) })
	}
	return kept
}

// Adopt returns the resources with a device that a pod was given under a name of
// ours and that none of them has: an earlier agent offered it. It is Left.
func Adopt(resources []*Resource, name, id, cdiKind string) []*Resource {
	if name != GPUResource && !strings.HasPrefix(name, migPrefix) {
		return resources
	}
	adopted := Device{ID: id, CDIName: cdiKind + "=" + id, NUMANode: gpu.NUMAUnknown, Fault: gpu.FaultGone, Left: true}
	for _, r := range resources {
		i, lists := r.position[id]
		if lists && r.Name == name {
			return resources
		}
		if lists { // it is offered as something else now
			adopted = r.Devices[i]
			adopted.Left, adopted.Fault = true, leftResource
		}
	}
	return Retain([]*Resource{newResource(name, []Device{adopted}, nil)}, resources, func(string, string) bool { return true })
}

// with returns the resource with those of devices that it lacks, as Left.
func (r *Resource) with(devices []Device, mayBeHeld func(resource, id string) bool) *Resource {
	all := slices.Clone(r.Devices)
	for _, d := range devices {
		if r.Lists(d.ID) || !mayBeHeld(r.Name, d.ID) {
			continue
		}
		if !d.Left {
			d.Left, d.Fault = true, leftResource
		}
		all = append(all, d)
	}
	aff := matrix(len(all)) // what has left suits nothing: nobody is given it
	for i := range r.affinity {
		copy(aff[i], r.affinity[i])
	}
	return newResource(r.Name, all, aff)
}

// contested says who may still reach a device that is to be given out.
func contested(d Device, all []*Resource) string {
	for _, r := range all {
		for _, holder := range r.Devices {
			if holder.Left && holder.reaches(d) {
				return fmt.Sprintf("waits until no pod holds %s of %s", holder.ID, r.Name)
			}
		}
	}
	return ""
}

// reaches says whether who was given d can use other too. Who has a MIG device
// has its GPU's node, which is all that the whole GPU takes; who has the GPU
// lacks the nodes of its MIG devices.
func (d Device) reaches(other Device) bool {
	return d.GPU == other.GPU && (other.part == wholeGPU || other.part == d.part)
}

// Withdraw returns before with the faults that its devices have in after, which
// has all its resources: what may go on being offered until after is.
func Withdraw(before, after []*Resource) []*Resource {
	still := make([]*Resource, len(before))
	for i, r := range before {
		j := slices.IndexFunc(after, func(a *Resource) bool { return a.Name == r.Name })
		still[i] = r.faulty(func(d Device) string { return after[j].fault(d.ID) })
	}
	return still
}

// faulty returns the resource with the devices that fault names a fault for
// marked with it, unless they have one already.
func (r *Resource) faulty(fault func(Device) string) *Resource {
	marked := *r
	marked.Devices = slices.Clone(r.Devices)
	for i, d := range marked.Devices {
		if d.Fault == "" {
			marked.Devices[i].Fault = fault(d)
		}
	}
	return &marked
}

func (r *Resource) fault(id string) string {
	i, known := r.position[id]
	if !known {
		return ""
	}
	return r.Devices[i].Fault
}

// Change is a device that came, or whose fault changed.
type Change struct {
	Resource string
	Device   Device // as it is now
	New      bool
}

// Changes says what changed from before to after. A device does not leave
// resources that are kept with Retain, but for being forgotten.
func Changes(before, after []*Resource) []Change {
	known := map[[2]string]Device{}
	for _, r := range before {
		for _, d := range r.Devices {
			known[[2]string{r.Name, d.ID}] = d
		}
	}
	var changes []Change
	for _, r := range after {
		for _, d := range r.Devices {
			was, here := known[[2]string{r.Name, d.ID}]
			if !here || was.Fault != d.Fault {
				changes = append(changes, Change{Resource: r.Name, Device: d, New: !here})
			}
		}
	}
	return changes
}
