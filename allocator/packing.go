package allocator

import (
	"cmp"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// PackingOrder returns the IDs of GPUs and MIG devices in the order in which they should be allocated: the scheduler
// allocates the first ones that match. free reports whether an ID can be allocated. The result contains all IDs, and
// does not depend on the order of ids.
//
// A set is broken if some of its members are not free. GPUs of broken sets precede those of whole sets, so that a
// request for one GPU does not break a set while a broken one has a free GPU. MIG devices are ordered by the number of
// free ones on their GPU, fewest first. The members of a set are adjacent unless byFree separates them.
func PackingOrder(inv *gpu.Inventory, sets Sets, ids []string, free func(id string) bool) []string {
	p := packing{places: make(map[string]place, len(ids)), free: map[setOfSize]int{}, first: map[setOfSize]int{}}
	for _, id := range ids {
		p.places[id] = placeOf(inv, sets, id)
	}
	order := slices.Clone(ids)
	slices.SortFunc(order, p.byPosition)
	for i, id := range order {
		for size, name := range p.places[id].sets {
			set := setOfSize{size, name}
			if _, found := p.first[set]; !found {
				p.first[set] = i
			}
			if free(id) {
				p.free[set]++
			}
		}
	}
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Or(p.byFree(a, b), p.bySet(a, b), p.byPosition(a, b))
	})
	return order
}

// place is the position of a GPU or MIG device and the sets that contain it. For a MIG device, its GPU stands for
// each set.
type place struct {
	gpu, mig int // indexes; IDs that the inventory lacks follow all others
	sets     setNames
}

func placeOf(inv *gpu.Inventory, sets Sets, id string) place {
	const last = 1 << 30
	g, found := inv.Find(id)
	if !found {
		return place{gpu: last, sets: setNames{id, id, id}}
	}
	if m, isMIG := g.MIGDevice(id); isMIG {
		return place{gpu: g.Index, mig: m.Index, sets: setNames{g.UUID, g.UUID, g.UUID}}
	}
	p := place{gpu: g.Index}
	for i, size := range SetSizes {
		p.sets[i] = sets.Name(id, size)
	}
	return p
}

// setOfSize is a set, by the index of its size in SetSizes and its name.
type setOfSize struct {
	size int
	name string
}

type packing struct {
	places map[string]place
	free   map[setOfSize]int // number of free members
	first  map[setOfSize]int // position of the first member
}

// byFree orders by the number of free members of the sets, comparing the smallest sets first. Sets are nested, so the
// members of a whole set follow those of all broken sets of its size.
func (p packing) byFree(a, b string) int {
	x, y := p.places[a].sets, p.places[b].sets
	for size := range SetSizes {
		if c := cmp.Compare(p.free[setOfSize{size, x[size]}], p.free[setOfSize{size, y[size]}]); c != 0 {
			return c
		}
	}
	return 0
}

// bySet keeps the members of each set adjacent. It compares the largest sets first.
func (p packing) bySet(a, b string) int {
	x, y := p.places[a].sets, p.places[b].sets
	for size := range slices.Backward(SetSizes[:]) {
		if c := cmp.Compare(p.first[setOfSize{size, x[size]}], p.first[setOfSize{size, y[size]}]); c != 0 {
			return c
		}
	}
	return 0
}

func (p packing) byPosition(a, b string) int {
	x, y := p.places[a], p.places[b]
	return cmp.Or(cmp.Compare(x.gpu, y.gpu), cmp.Compare(x.mig, y.mig), cmp.Compare(a, b))
}
