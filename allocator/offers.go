package allocator

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpucdi/gpucdi/gpu"
)

// notProved is why a device without a fault is not available yet.
const notProved = "waits until its CDI device is on disk"

// Offers returns what the kubelet is told of each resource: the devices of a plan as the ledger has
// them, and after them those that only the ledger has. A device whose replicas are in different states
// is listed once for each, with the replicas that are in it.
func Offers(plan []*Resource, l Ledger, inv *gpu.Inventory, cdiKind string) []*Resource {
	o := offers{ledger: l, inv: inv, kind: cdiKind}
	var resources []*Resource
	for _, r := range plan {
		resources = append(resources, o.of(r))
	}
	for e := range l.Entries() {
		if !slices.ContainsFunc(resources, func(r *Resource) bool { return r.Name == e.Outlet }) {
			resources = append(resources, o.of(newResource(e.Outlet, nil, nil)))
		}
	}
	return resources
}

type offers struct {
	ledger Ledger
	inv    *gpu.Inventory
	kind   string
}

// of returns a resource of the plan as it is offered. Its devices keep their positions.
func (o offers) of(r *Resource) *Resource {
	var devices, more []Device
	for _, d := range r.Devices {
		states := o.byState(r.Name, d)
		devices = append(devices, states[0])
		more = append(more, states[1:]...)
	}
	for e := range o.ledger.Outlet(r.Name) {
		if !r.Lists(e.ID) {
			more = o.join(more, e)
		}
	}
	devices = append(devices, more...)
	aff := matrix(len(devices)) // nothing goes well with what cannot be allocated
	for i := range r.affinity {
		copy(aff[i], r.affinity[i])
	}
	return newResource(r.Name, devices, aff)
}

// byState splits a device of the plan by the states of its replicas, the available ones first.
func (o offers) byState(outlet string, d Device) []Device {
	var split []Device
	for _, id := range d.IDs() {
		e, _ := o.ledger.Entry(Key{outlet, id})
		i := slices.IndexFunc(split, func(s Device) bool { return s.State == e.State })
		if i < 0 {
			i, split = len(split), append(split, o.told(d, e))
		}
		split[i] = split[i].withReplica(d, id)
	}
	slices.SortStableFunc(split, func(a, b Device) int { return rank(a.State) - rank(b.State) })
	return split
}

func rank(s State) int {
	if s == StateAvailable {
		return 0
	}
	return 1
}

// withReplica adds a replica, if the device it is one of is shared.
func (d Device) withReplica(of Device, id string) Device {
	if of.Shared() {
		d.Replicas = append(d.Replicas, id)
	}
	return d
}

// told returns a device as the kubelet is told of it in the state of an entry.
func (o offers) told(d Device, e Entry) Device {
	planned := d.Fault
	d.State, d.Since, d.Fault, d.Replicas = e.State, e.Since(), e.Fault, nil
	switch e.State {
	case StateAvailable:
	case StateUnavailable: // until its CDI device is proved, although it has no fault any more
		if d.Fault.None() {
			d.Why = notProved
		}
	case StateDraining:
		d.Awaits = e.awaits()
		if o.gone(d.GPU) {
			d.Fault = gpu.Gone()
			break
		}
		d.Why = e.Drain.Reason.describe()
	case StateReleased:
		d.Why = e.Why()
	default:
		d.State, d.Why, d.Fault = StateWaiting, o.ledger.blocked(e), planned
	}
	if !d.Fault.None() && d.Fault.Since.IsZero() {
		d.Fault.Since = e.Since()
	}
	return d
}

// gone reports whether a GPU is lost. That is a fault of what drains for it, and no planned change.
func (o offers) gone(uuid string) bool {
	g, known := o.inv.Find(uuid)
	return !known || g.Fault.Code == gpu.FaultGone
}

// join adds an entry that the plan lacks, to the device that it is a replica of if that is there.
func (o offers) join(devices []Device, e Entry) []Device {
	d := o.left(e)
	i := slices.IndexFunc(devices, func(o Device) bool {
		return d.Shared() && o.Shared() && o.ID == d.ID && o.State == d.State && o.Fault.Same(d.Fault)
	})
	if i < 0 {
		return append(devices, d)
	}
	devices[i].Replicas = append(devices[i].Replicas, e.ID)
	return devices
}

// left returns the device of an entry that the plan lacks. What is not in the inventory is known by its
// ID alone.
func (o offers) left(e Entry) Device {
	id, replica := replicaOf(e.ID)
	d := Device{ID: id, CDIName: o.kind + "=" + id, GPU: e.Part.GPU, NUMANode: gpu.NUMAUnknown}
	if g, known := o.inv.Find(id); known {
		d.GPU, d.NUMANode, d.Index = g.UUID, g.NUMANode, strconv.Itoa(g.Index)
		if m, isMIG := g.MIGDevice(id); isMIG {
			d.Index = fmt.Sprintf("%d:%d", g.Index, m.Index)
		}
	}
	d = o.told(d, e)
	if replica {
		d.Replicas = []string{e.ID}
	}
	return d
}

// blocked describes what an entry that waits is waiting for.
func (l Ledger) blocked(e Entry) string {
	for i := range l.entries {
		other := &l.entries[i]
		if other.mayBeHeld() && other.Key != e.Key && other.Part.Overlaps(e.Part) {
			return fmt.Sprintf("waits until no pod holds %s of %s", other.described(), other.Outlet)
		}
	}
	if l.begin.pending {
		return "waits until it is proved what an earlier agent allocated"
	}
	return notProved + ", and no container has it"
}

// described is how people are told of the device of an entry.
func (e *Entry) described() string {
	if id, replica := replicaOf(e.ID); replica {
		return "a replica of " + id
	}
	return e.ID
}

// awaits describes what the release of an entry that drains is waiting for.
func (e Entry) awaits() string {
	switch {
	case e.dirty && e.unbooked.IsZero():
		return "its pods to end, and the kubelet to record that"
	case e.dirty:
		return "the container runtime to report no container with it"
	}
	return "the kubelet to take in that it is withdrawn"
}

// Change is a device that came, or whose fault changed; of one without a fault, also the state.
type Change struct {
	Resource    string
	Before, Now Device // Before is the zero Device if it is new
}

// Changes returns what changed from before to after; of the replicas of a device in one state, one
// stands for all. What is not listed any more is not among them.
func Changes(before, after []*Resource) []Change {
	known := map[string]*Resource{}
	for _, r := range before {
		known[r.Name] = r
	}
	var changes []Change
	for _, r := range after {
		was := known[r.Name]
		for _, d := range r.Devices {
			earlier, here := Device{}, false
			if was != nil {
				earlier, here = was.device(d.IDs()[0])
			}
			if !here || !earlier.Fault.Same(d.Fault) || d.Fault.None() && earlier.State != d.State {
				changes = append(changes, Change{Resource: r.Name, Before: earlier, Now: d})
			}
		}
	}
	return changes
}

// device returns the device that an ID stands for, if the resource lists it.
func (r *Resource) device(id string) (Device, bool) {
	p, known := r.position[id]
	if !known {
		return Device{}, false
	}
	return r.Devices[r.slots[p].device], true
}
