package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/config"
)

// leftResource is the fault of a device that is still there but no longer one of
// the resource's: its GPU is cut anew, or the config has changed.
const leftResource = "no longer offered as this resource"

// Retain returns now with the devices of earlier that it lacks and that a pod
// may hold added to their resources as Left, replica by replica, and without a
// resource of earlier being lost. A device that one of those left can still reach
// waits until that one is let go: two pods would share it.
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
		kept[i] = r.faulty(func(d Device) string { return contested(d, r.Name, kept) })
		for j, d := range kept[i].Devices {
			kept[i].Devices[j].Waits = d.Fault != r.Devices[j].Fault
		}
	}
	return kept
}

// Adopt returns the resources with a device that a pod was given under a name of
// ours and that none of them has: an earlier agent offered it. It is Left.
func Adopt(resources []*Resource, name, id, cdiKind string) []*Resource {
	if own := strings.TrimSuffix(name, config.SharedSuffix); own != GPUResource && !strings.HasPrefix(own, migPrefix) {
		return resources
	}
	device, replica := replicaOf(id)
	adopted := Device{ID: device, CDIName: cdiKind + "=" + device, NUMANode: gpu.NUMAUnknown, Fault: gpu.FaultGone, Left: true}
	for _, r := range resources {
		if r.Name == name && r.Lists(id) {
			return resources
		}
		i := slices.IndexFunc(r.Devices, func(d Device) bool { return d.ID == device })
		if i >= 0 { // it is offered as something else now
			adopted = r.Devices[i]
			adopted.Left, adopted.Fault, adopted.Replicas = true, leftResource, nil
		}
	}
	if replica {
		adopted.Replicas = []string{id}
	}
	return Retain([]*Resource{newResource(name, []Device{adopted}, nil)}, resources, func(string, string) bool { return true })
}

// WithFault returns the resources with all their devices marked with a fault.
func WithFault(resources []*Resource, fault string) []*Resource {
	marked := make([]*Resource, len(resources))
	for i, r := range resources {
		one := *r
		one.Devices = slices.Clone(r.Devices)
		for j := range one.Devices {
			one.Devices[j].Fault = fault
		}
		marked[i] = &one
	}
	return marked
}

// with returns the resource with those of devices that it lacks, as Left.
func (r *Resource) with(devices []Device, mayBeHeld func(resource, id string) bool) *Resource {
	all := slices.Clone(r.Devices)
	for _, d := range devices {
		lacking := slices.DeleteFunc(slices.Clone(d.IDs()), func(id string) bool {
			return r.Lists(id) || !mayBeHeld(r.Name, id)
		})
		if len(lacking) == 0 {
			continue
		}
		if d.Shared() {
			d.Replicas = lacking
		}
		if !d.Left {
			d.Left, d.Fault = true, leftResource
		}
		if r.gone[d.ID] {
			d.Fault = gpu.FaultGone
		}
		all = join(all, d)
	}
	aff := matrix(len(all)) // what has left suits nothing: nobody is given it
	for i := range r.affinity {
		copy(aff[i], r.affinity[i])
	}
	return newResource(r.Name, all, aff)
}

// join adds one that has left, or its replicas to those of the device that have
// left already.
func join(devices []Device, left Device) []Device {
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Left && d.Shared() && left.Shared() && d.ID == left.ID })
	if i < 0 {
		return append(devices, left)
	}
	devices[i].Replicas = slices.Concat(devices[i].Replicas, left.Replicas)
	return devices
}

// contested says who may still reach a device that is to be given out as one of a
// resource.
func contested(d Device, resource string, all []*Resource) string {
	for _, r := range all {
		for _, holder := range r.Devices {
			shares := r.Name == resource && holder.ID == d.ID && holder.Shared() && d.Shared()
			if holder.Left && holder.reaches(d) && !shares {
				return fmt.Sprintf("waits until no pod holds %s of %s", holder.described(), r.Name)
			}
		}
	}
	return ""
}

// described is how people are told of a device.
func (d Device) described() string {
	if d.Shared() {
		return "a replica of " + d.ID
	}
	return d.ID
}

// reaches says whether who was given d can use other too. Who has a MIG device
// has its GPU's node, which is all that the whole GPU takes; who has the GPU
// lacks the nodes of its MIG devices.
func (d Device) reaches(other Device) bool {
	return d.GPU == other.GPU && (other.part == wholeGPU || other.part == d.part)
}

// Withdraw returns before with the faults that its devices have in after, which
// has all its resources: what may go on being offered until after is. A replica
// too many may be, as long as its device is.
func Withdraw(before, after []*Resource) []*Resource {
	still := make([]*Resource, len(before))
	for i, r := range before {
		j := slices.IndexFunc(after, func(a *Resource) bool { return a.Name == r.Name })
		still[i] = r.faulty(func(d Device) string { return after[j].fault(d.IDs()[0]) })
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
	d, _ := r.device(id)
	return d.Fault
}

// device returns the device that an ID stands for, if the resource lists it.
func (r *Resource) device(id string) (Device, bool) {
	p, known := r.position[id]
	if !known {
		return Device{}, false
	}
	return r.Devices[r.slots[p].device], true
}

// Change is a device that came, or whose fault changed.
type Change struct {
	Resource string
	Device   Device // as it is now
	New      bool
	Drained  bool // it was Draining before
}

// Changes returns what changed from before to after. A device does not leave resources that
// are kept with Retain, other than by being pruned; of its replicas, one stands for all.
func Changes(before, after []*Resource) []Change {
	known := map[string]*Resource{}
	for _, r := range before {
		known[r.Name] = r
	}
	var changes []Change
	for _, r := range after {
		was := cmp.Or(known[r.Name], &Resource{})
		for _, d := range r.Devices {
			earlier, here := was.device(d.IDs()[0])
			if !here || earlier.Fault != d.Fault {
				changes = append(changes, Change{Resource: r.Name, Device: d, New: !here, Drained: earlier.Draining()})
			}
		}
	}
	return changes
}
