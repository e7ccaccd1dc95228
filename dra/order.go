package dra

import (
	"cmp"
	"slices"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// Order returns offers in the order in which the scheduler should allocate them. They are grouped by resource, in the
// order of the first offer of each. In a group, devices that are not shared come first, in the order of
// allocator.Order, and shared ones follow, ordered by placement. held is the result of allocator.HeldByClaims.
func Order(inv *gpu.Inventory, offers []Offer, held map[string]allocator.Amount, placement allocator.SharePlacement) []Offer {
	sets := setsOf(inv, offers)
	var resources []string
	ids, byID := map[string][]string{}, make(map[string]Offer, len(offers))
	for _, o := range offers {
		if ids[o.Resource] == nil {
			resources = append(resources, o.Resource)
		}
		ids[o.Resource], byID[o.ID] = append(ids[o.Resource], o.ID), o
	}
	free := func(id string) bool {
		_, isHeld := held[id]
		return byID[id].Fault.None() && !isHeld
	}
	ordered := make([]Offer, 0, len(offers))
	for _, resource := range resources {
		first := len(ordered)
		for _, id := range allocator.Order(inv, sets[resource], ids[resource], free) {
			ordered = append(ordered, byID[id])
		}
		slices.SortStableFunc(ordered[first:], func(a, b Offer) int { return compareShared(a, b, held, placement) })
	}
	return ordered
}

// compareShared orders offers of one resource. The scheduler allocates the first one with enough free capacity to a
// claim for a share.
func compareShared(a, b Offer, held map[string]allocator.Amount, placement allocator.SharePlacement) int {
	switch {
	case !a.shared() && !b.shared():
		return 0
	case !a.shared():
		return -1
	case !b.shared():
		return 1
	}
	x, y := a.free(held), b.free(held)
	byFree := cmp.Or(cmp.Compare(x.Cores, y.Cores), cmp.Compare(x.Replicas, y.Replicas), cmp.Compare(x.Memory, y.Memory))
	if placement == allocator.Spread {
		return -byFree
	}
	return byFree
}

// free returns the free capacity of a shared device.
func (o Offer) free(held map[string]allocator.Amount) allocator.Amount {
	used, isHeld := held[o.ID]
	switch {
	case !isHeld:
		return o.Capacity
	case used == allocator.Amount{}: // all of it is held
		return allocator.Amount{}
	}
	return o.Capacity.Minus(used)
}

// shared reports whether claims share the device.
func (o Offer) shared() bool { return o.Capacity != allocator.Amount{} }

// share adds the capacities of which claims consume a part. Without a request policy, a claim would consume all of a
// capacity, so the other capacities get a policy with which it consumes nothing.
func (o Offer) share(d *cluster.Device) {
	none, one, step := cluster.Count(0), cluster.Count(1), cluster.Bytes(allocator.ShareStep)
	for name, capacity := range d.Capacity {
		if capacity != none {
			d.Capacity[name] = cluster.Consumable(capacity, none, none, one)
		}
	}
	if o.Capacity.Replicas > 0 {
		d.Capacity[capacityShares] = cluster.Consumable(cluster.Count(o.Capacity.Replicas), one, one, one)
		return
	}
	cores, memory := cluster.Count(o.Capacity.Cores), cluster.Bytes(o.Capacity.Memory)
	d.Capacity[capacityCores] = cluster.Consumable(cores, cores, one, one)
	d.Capacity[capacityMemory] = cluster.Consumable(memory, memory, cluster.Bytes(allocator.MinShare), step)
}
