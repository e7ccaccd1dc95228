package allocator

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// SetSizes are the sizes of the sets of GPUs in Sets, ascending.
var SetSizes = [...]int{2, 4, 8}

// Sets are disjoint sets of well-linked GPUs, for each of SetSizes. They are nested: both halves of a set are sets of
// the next smaller size. So allocating a set breaks only one set of each larger size.
type Sets struct {
	names map[string]setNames // by UUID
}

// setNames are the names of the sets that contain a GPU, in the order of SetSizes.
type setNames [len(SetSizes)]string

// NewSets returns the sets of the GPUs with these UUIDs. They depend only on the GPUs, their links and NUMA nodes, so
// they stay the same while GPUs are allocated and released.
func NewSets(inv *gpu.Inventory, uuids []string) Sets {
	s := Sets{names: make(map[string]setNames, len(uuids))}
	var gpus []gpu.GPU
	for _, uuid := range uuids {
		s.names[uuid] = setNames{uuid, uuid, uuid}
		if g, found := inv.Find(uuid); found && g.UUID == uuid {
			gpus = append(gpus, g)
		}
	}
	slices.SortFunc(gpus, func(a, b gpu.GPU) int { return cmp.Or(a.Index-b.Index, cmp.Compare(a.UUID, b.UUID)) })
	gpus = slices.CompactFunc(gpus, func(a, b gpu.GPU) bool { return a.UUID == b.UUID })
	aff := newAffinity(gpus)
	groups := [][]int{make([]int, len(gpus))}
	for i := range gpus {
		groups[0][i] = i
	}
	for i, size := range slices.Backward(SetSizes[:]) {
		var parts [][]int
		for _, group := range groups {
			parts = append(parts, aff.split(group, size)...)
		}
		groups = parts
		for _, group := range groups {
			if len(group) == size {
				s.add(i, gpus, group)
			}
		}
	}
	return s
}

// add adds a set, named after the smallest UUID of its members. sizeIndex is the index of its size in SetSizes.
func (s Sets) add(sizeIndex int, gpus []gpu.GPU, members []int) {
	name := gpus[members[0]].UUID
	for _, m := range members {
		name = min(name, gpus[m].UUID)
	}
	for _, m := range members {
		names := s.names[gpus[m].UUID]
		names[sizeIndex] = name
		s.names[gpus[m].UUID] = names
	}
}

// Name returns the name of the set of a size that contains a GPU; its UUID if there is none.
func (s Sets) Name(uuid string, size int) string {
	names, found := s.names[uuid]
	i := slices.Index(SetSizes[:], size)
	if !found || i < 0 {
		return uuid
	}
	return names[i]
}

// split splits a group into sets of a size and the remaining devices, if any.
func (a affinity) split(group []int, size int) (parts [][]int) {
	for rest := group; len(rest) > 0; {
		var set []int
		switch {
		case len(rest) <= size:
			return append(parts, rest)
		case len(rest) == 2*size && len(rest) <= maxHalved:
			set = a.half(rest)
		default:
			set = newSearch(a, rest, nil, size).run()
		}
		parts = append(parts, set)
		rest = slices.DeleteFunc(slices.Clone(rest), func(d int) bool { return slices.Contains(set, d) })
	}
	return parts
}

// maxHalved is the largest group for which half tries all halves: 35 for 8 devices.
const maxHalved = 8

// half splits a group into the halves that together have the highest weight, the first ones among equals, and returns
// the half with the first device.
func (a affinity) half(group []int) []int {
	best, bestWeight := uint(0), int64(-1)
	for half := uint(1); half < 1<<len(group); half += 2 {
		if 2*bits.OnesCount(half) != len(group) {
			continue
		}
		var weight int64
		for i, d := range group {
			for j, e := range group[:i] {
				if half>>i&1 == half>>j&1 {
					weight += a[d][e]
				}
			}
		}
		if weight > bestWeight {
			best, bestWeight = half, weight
		}
	}
	set := make([]int, 0, len(group)/2)
	for i, d := range group {
		if best>>i&1 == 1 {
			set = append(set, d)
		}
	}
	return set
}

// NVLinkDomains returns the NVLink domain of each GPU by UUID. GPUs are in one domain if NVLinks connect them, directly
// or through other GPUs. The name of a domain is the smallest UUID in it, so that of a GPU without NVLinks is its own
// UUID.
func NVLinkDomains(inv *gpu.Inventory) map[string]string {
	domains := make(map[string]string, len(inv.GPUs))
	aff := newAffinity(inv.GPUs)
	var visit func(i int, domain string)
	visit = func(i int, domain string) {
		domains[inv.GPUs[i].UUID] = domain
		for j, weight := range aff[i] {
			if _, visited := domains[inv.GPUs[j].UUID]; !visited && weight >= nvLinkWeight {
				visit(j, domain)
			}
		}
	}
	order := make([]int, len(inv.GPUs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(inv.GPUs[i].UUID, inv.GPUs[j].UUID) })
	for _, i := range order {
		if uuid := inv.GPUs[i].UUID; domains[uuid] == "" {
			visit(i, uuid)
		}
	}
	return domains
}
