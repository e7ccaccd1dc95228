package allocator

import (
	"cmp"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// Order returns the IDs of GPUs and MIG devices in the order in which the scheduler should allocate them: it takes the
// first ones that match, as many as a claim requests. free reports whether an ID can be allocated. The result contains
// all IDs, and does not depend on the order of ids.
//
// GPUs of pairs with the most free members come first; among these, GPUs of sets of four with the most free members, and
// so on. So a claim for a pair, or for a larger set, gets a whole one if there is one. MIG devices follow all GPUs with
// a free member in their pair. They are ordered by the number of free ones on their GPU, fewest first, so that other GPUs
// can be repartitioned.
func Order(inv *gpu.Inventory, sets Sets, ids []string, free func(id string) bool) []string {
	o := ordering{places: make(map[string]place, len(ids)), free: map[setOfSize]int{}, first: map[setOfSize]int{}}
	for _, id := range ids {
		o.places[id] = placeOf(inv, sets, id)
	}
	order := slices.Clone(ids)
	slices.SortFunc(order, o.byPosition)
	for i, id := range order {
		for size, name := range o.places[id].sets {
			set := setOfSize{size, name}
			if _, found := o.first[set]; !found {
				o.first[set] = i
			}
			if free(id) {
				o.free[set]++
			}
		}
	}
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Or(o.byFree(a, b), o.bySet(a, b), o.byPosition(a, b))
	})
	return order
}

// place is the position of a GPU or MIG device, and the names of the sets that contain it, in the order of SetSizes. A GPU
// that is in no set of a size has the name of its next smaller set there. A MIG device has the UUID of its GPU for each
// size.
type place struct {
	gpu, mig int // indexes; IDs that the inventory lacks follow all others
	isMIG    bool
	sets     setNames
}

func placeOf(inv *gpu.Inventory, sets Sets, id string) place {
	const last = 1 << 30
	g, found := inv.Find(id)
	if !found {
		return place{gpu: last, sets: setNames{id, id, id}}
	}
	if m, isMIG := g.MIGDevice(id); isMIG {
		return place{gpu: g.Index, mig: m.Index, isMIG: true, sets: setNames{g.UUID, g.UUID, g.UUID}}
	}
	p := place{gpu: g.Index}
	for i, size := range SetSizes {
		p.sets[i] = sets.Name(id, size)
		if i > 0 && p.sets[i] == id { // in no set of this size, or named after this GPU like its smaller set
			p.sets[i] = p.sets[i-1]
		}
	}
	return p
}

// setOfSize is a set, by the index of its size in SetSizes and its name.
type setOfSize struct {
	size int
	name string
}

type ordering struct {
	places map[string]place
	free   map[setOfSize]int // number of free members
	first  map[setOfSize]int // position of the first member
}

// byFree orders by the number of free members of the sets, comparing the smallest sets first.
func (o ordering) byFree(a, b string) int {
	for size := range SetSizes {
		if c := cmp.Compare(o.rank(b, size), o.rank(a, size)); c != 0 {
			return c
		}
	}
	return 0
}

// rank is higher for devices to be allocated earlier.
func (o ordering) rank(id string, size int) int {
	p := o.places[id]
	free := o.free[setOfSize{size, p.sets[size]}]
	if p.isMIG {
		return -free
	}
	return free
}

// bySet keeps the members of each set adjacent. It compares the largest sets first.
func (o ordering) bySet(a, b string) int {
	x, y := o.places[a].sets, o.places[b].sets
	for size := range slices.Backward(SetSizes[:]) {
		if c := cmp.Compare(o.first[setOfSize{size, x[size]}], o.first[setOfSize{size, y[size]}]); c != 0 {
			return c
		}
	}
	return 0
}

func (o ordering) byPosition(a, b string) int {
	x, y := o.places[a], o.places[b]
	return cmp.Or(cmp.Compare(x.gpu, y.gpu), cmp.Compare(x.mig, y.mig), cmp.Compare(a, b))
}
