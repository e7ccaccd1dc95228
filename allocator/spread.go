package allocator

import (
	"cmp"
	"slices"
)

// spread selects free slots on as many devices as possible. The selection has the given size and includes must.
func (r *Resource) spread(free, must []int, size int) []int {
	s := selection{resource: r, taken: make([]int, len(r.Devices)), free: make([][]int, len(r.Devices))}
	optional := make([]int, 0, len(free)) // backs s.free; slots of one device are adjacent
	for _, p := range free {
		d := r.slots[p].device
		if _, required := slices.BinarySearch(must, p); required {
			s.taken[d]++
			continue
		}
		optional = append(optional, p)
		s.free[d] = optional[len(optional)-len(s.free[d])-1:]
	}
	chosen := slices.Clone(must)
	for len(chosen) < size {
		for _, d := range s.nextDevices(size - len(chosen)) {
			chosen = append(chosen, s.free[d][0])
			s.free[d] = s.free[d][1:]
			s.taken[d]++
		}
	}
	slices.Sort(chosen)
	return chosen
}

// selection is the state of a request, by device.
type selection struct {
	resource *Resource
	taken    []int   // number of selected slots
	free     [][]int // slots that can be selected
}

// nextDevices returns the devices of which to select one more slot: those with the fewest selected slots. If there are
// more than limit, it returns those with the fewest slots in use, and among equals those linked best to each other and
// to the selection.
func (s *selection) nextDevices(limit int) []int {
	devices, least := s.leastUsed()
	if len(devices) <= limit {
		return devices
	}
	inUse := func(d int) int { return len(s.resource.Devices[d].IDs()) - len(s.free[d]) }
	slices.SortStableFunc(devices, func(d, e int) int { return cmp.Compare(inUse(d), inUse(e)) })
	// devices[first:end] have as many slots in use as the last device that is needed.
	threshold := inUse(devices[limit-1])
	first := slices.IndexFunc(devices, func(d int) bool { return inUse(d) == threshold })
	end := first
	for end < len(devices) && inUse(devices[end]) == threshold {
		end++
	}
	if end == limit {
		return devices[:limit]
	}
	must := slices.Clone(devices[:first])
	for d, n := range s.taken {
		if n > least {
			must = append(must, d)
		}
	}
	slices.Sort(must)
	candidates := slices.Concat(must, devices[first:end])
	slices.Sort(candidates)
	best := newSearch(s.resource.affinity, candidates, must, len(must)+limit-first).run()
	return slices.DeleteFunc(best, func(d int) bool { return s.taken[d] > least })
}

// leastUsed returns the devices with a free slot that have the fewest selected slots, and that number.
func (s *selection) leastUsed() (devices []int, least int) {
	devices = make([]int, 0, len(s.free))
	for d, free := range s.free {
		switch {
		case len(free) == 0:
		case len(devices) == 0 || s.taken[d] < least:
			devices, least = append(devices[:0], d), s.taken[d]
		case s.taken[d] == least:
			devices = append(devices, d)
		}
	}
	return devices, least
}
