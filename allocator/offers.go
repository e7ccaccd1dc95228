package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpucdi/gpucdi/gpu"
)

// specPending is the reason of a device that waits until its CDI device is verified.
const specPending = "waits for its CDI spec to be on disk"

// Offers returns the resources to advertise: the devices of the plan in their ledger states, followed by the devices
// that only the ledger contains. A device whose replicas are in different states is listed once per state.
func Offers(plan []*Resource, l Ledger, inv *gpu.Inventory, cdiKind string) []*Resource {
	o := offers{ledger: l, inv: inv, kind: cdiKind, planned: map[string]string{}}
	for _, r := range plan {
		for _, d := range r.Devices {
			o.planned[d.ID] = r.Name
		}
	}
	var resources []*Resource
	for _, r := range plan {
		resources = append(resources, o.resource(r))
	}
	for e := range l.Entries() {
		if !slices.ContainsFunc(resources, func(r *Resource) bool { return r.Name == e.Outlet }) {
			resources = append(resources, o.resource(newResource(e.Outlet, nil, nil)))
		}
	}
	return resources
}

type offers struct {
	ledger  Ledger
	inv     *gpu.Inventory
	kind    string
	planned map[string]string // outlets of devices, by ID
}

// resource returns a resource as it is advertised. The devices of the plan keep their positions.
func (o offers) resource(r *Resource) *Resource {
	var devices, more []Device
	for _, d := range r.Devices {
		states := o.byState(r.Name, d)
		devices = append(devices, states[0])
		more = append(more, states[1:]...)
	}
	for e := range o.ledger.Outlet(r.Name) {
		if !r.Has(e.ID) {
			more = o.addUnplanned(more, e)
		}
	}
	devices = append(devices, more...)
	aff := matrix(len(devices)) // zero for the devices in more, which cannot be allocated
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
			i, split = len(split), append(split, o.withState(d, e))
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

// withReplica adds a replica if the device of the plan is shared.
func (d Device) withReplica(of Device, id string) Device {
	if of.Shared() {
		d.Replicas = append(d.Replicas, id)
	}
	return d
}

// withState returns a device in the state of an entry.
func (o offers) withState(d Device, e Entry) Device {
	planned := d.Fault
	d.State, d.Since, d.Fault, d.Replicas = e.State, e.Since(), e.Fault, nil
	d.Class = cmp.Or(e.Part.Share.Class, d.Class)
	switch e.State {
	case StateAvailable:
	case StateUnavailable: // without a fault after a restart, until its CDI device is verified
		if d.Fault.None() {
			d.Reason = specPending
		}
	case StateDraining:
		d.Awaits = e.awaits()
		if d.ID != MonitorID && o.gone(d.GPU) {
			d.Fault = gpu.Gone()
			break
		}
		d.Reason = e.Drain.Reason.describe()
		if outlet := o.planned[d.ID]; e.Drain.Reason == ReasonConfig && outlet != "" && outlet != e.Outlet {
			d.Reason = "moving to " + describeOutlet(outlet)
		}
	case StateReleased:
		d.Reason = e.Message()
	default:
		d.State, d.Reason, d.Fault = StateWaiting, o.ledger.waitReason(e), planned
	}
	if !d.Fault.None() && d.Fault.Since.IsZero() {
		d.Fault.Since = e.Since()
	}
	return d
}

// gone reports whether a GPU is gone. Its draining devices then have a fault, unlike on a planned change.
func (o offers) gone(uuid string) bool {
	g, found := o.inv.Find(uuid)
	return !found || g.Fault.Code == gpu.FaultGone
}

// addUnplanned adds an entry that is not in the plan, as a replica if devices contains its device in the same state.
func (o offers) addUnplanned(devices []Device, e Entry) []Device {
	d := o.unplannedDevice(e)
	i := slices.IndexFunc(devices, func(o Device) bool {
		return d.Shared() && o.Shared() && o.ID == d.ID && o.State == d.State && o.Fault.Same(d.Fault)
	})
	if i < 0 {
		return append(devices, d)
	}
	devices[i].Replicas = append(devices[i].Replicas, e.ID)
	return devices
}

// unplannedDevice returns the device of an entry that is not in the plan. If the inventory lacks it, its index and
// NUMA node are unknown.
func (o offers) unplannedDevice(e Entry) Device {
	id, replica := replicaOf(e.ID)
	d := Device{ID: id, CDINames: CDINames(o.kind, id, e.Features), Features: e.Features, GPU: e.Part.GPU, NUMANode: gpu.NUMAUnknown}
	if g, found := o.inv.Find(id); found {
		d.GPU, d.NUMANode, d.Index = g.UUID, g.NUMANode, strconv.Itoa(g.Index)
		if m, isMIG := g.MIGDevice(id); isMIG {
			d.Index = fmt.Sprintf("%d:%d", g.Index, m.Index)
		}
	}
	if id == MonitorID {
		d.Index = monitorIndex
	}
	d = o.withState(d, e)
	if replica {
		d.Replicas = []string{e.ID}
	}
	return d
}

// waitReason describes what a waiting entry waits for.
func (l Ledger) waitReason(e Entry) string {
	waitsFor := func(other *Entry) string {
		return fmt.Sprintf("waits until no pod holds %s of %s", other.displayID(), describeOutlet(other.Outlet))
	}
	var used usage // of its device
	var draining *Entry
	for i := range l.entries {
		other := &l.entries[i]
		switch {
		case !other.mayBeHeld() || other.Key == e.Key || !other.Part.touches(e.Part):
			continue
		case other.Part.overlaps(e.Part):
			return waitsFor(other)
		case other.State == StateDraining:
			draining = other
		}
		used.add(other.Part)
	}
	if draining != nil && !used.fits(e.Part) {
		return waitsFor(draining)
	}
	if l.bootstrap.pending {
		return "waits for evidence of the allocations of an earlier agent"
	}
	return specPending + ", for containers that use it to end, or for the compute mode of its GPU to be reset"
}

// describeOutlet returns the name of an outlet for messages.
func describeOutlet(outlet string) string {
	if outlet == SliceOutlet {
		return "the ResourceSlices"
	}
	return outlet
}

// displayID returns the device of an entry for messages.
func (e *Entry) displayID() string {
	if id, replica := replicaOf(e.ID); replica {
		return "a replica of " + id
	}
	return e.ID
}

// awaits describes what the release of a draining entry waits for.
func (e Entry) awaits() string {
	switch {
	case e.sliced() && e.dirty && e.unrecorded.IsZero():
		return "its claim to be unprepared when its pods end"
	case e.sliced() && e.processed.IsZero():
		return "the API server to acknowledge its withdrawal"
	case e.sliced() && e.claim != "":
		return "claim " + e.claim + ", to which it is allocated, to be prepared or deleted"
	case e.sliced() && !e.dirty:
		return "the API server to list no claim to which it is allocated"
	case e.dirty && e.unrecorded.IsZero():
		return "its pods to end and the kubelet to write its checkpoint"
	case e.dirty:
		return "the container runtime to report no container that uses it"
	}
	return "the kubelet to process its withdrawal"
}

// Change is a device that is new, or whose fault or, without a fault, state has changed.
type Change struct {
	Resource    string
	Before, Now Device // Before is the zero Device if it is new
}

// Changes returns the changes from before to after, one for all replicas of a device in one state. Devices that are no
// longer listed are omitted.
func Changes(before, after []*Resource) []Change {
	byName := map[string]*Resource{}
	for _, r := range before {
		byName[r.Name] = r
	}
	var changes []Change
	for _, r := range after {
		previous := byName[r.Name]
		for _, d := range r.Devices {
			earlier, found := Device{}, false
			if previous != nil {
				earlier, found = previous.device(d.IDs()[0])
			}
			if !found || !earlier.Fault.Same(d.Fault) || d.Fault.None() && earlier.State != d.State {
				changes = append(changes, Change{Resource: r.Name, Before: earlier, Now: d})
			}
		}
	}
	return changes
}

// device returns the device with an ID, if the resource lists it.
func (r *Resource) device(id string) (Device, bool) {
	p, found := r.position[id]
	if !found {
		return Device{}, false
	}
	return r.Devices[r.slots[p].device], true
}
