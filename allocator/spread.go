package allocator

import (
	"cmp"
	"slices"
)

// spread returns size of the free slots, must among them, on as many devices as
// there can be.
func (r *Resource) spread(free, must []int, size int) []int {
	h := hand{resource: r, taken: make([]int, len(r.Devices)), left: make([][]int, len(r.Devices))}
	rest := make([]int, 0, len(free))
	for _, p := range free {
		d := r.slots[p].device
		if _, required := slices.BinarySearch(must, p); required {
			h.taken[d]++
			continue
		}
		rest = append(rest, p) // a device's slots stand together
		h.left[d] = rest[len(rest)-len(h.left[d])-1:]
	}
	chosen := slices.Clone(must)
	for len(chosen) < size {
		for _, d := range h.round(size - len(chosen)) {
			chosen = append(chosen, h.left[d][0])
			h.left[d] = h.left[d][1:]
			h.taken[d]++
		}
	}
	slices.Sort(chosen)
	return chosen
}

// hand is what a request has of each device, and what there is for it to take.
type hand struct {
	resource *Resource
	taken    []int   // how many slots of a device
	left     [][]int // the free slots of a device
}

// round returns the devices to take one more slot of, not more than missing: of
// those that the request has the least of, those with the most slots free, and
// among equals those that work together best, with what the request has.
func (h *hand) round(missing int) []int {
	open, least := h.open()
	if len(open) <= missing {
		return open
	}
	free := func(d int) int { return len(h.left[d]) }
	slices.SortStableFunc(open, func(d, e int) int { return cmp.Compare(free(e), free(d)) })
	enough := free(open[missing-1])
	sure := slices.IndexFunc(open, func(d int) bool { return free(d) == enough })
	equal := sure
	for equal < len(open) && free(open[equal]) == enough {
		equal++
	}
	if equal == missing {
		return open[:missing]
	}
	must := slices.Clone(open[:sure])
	for d, n := range h.taken {
		if n > least {
			must = append(must, d)
		}
	}
	slices.Sort(must)
	candidates := slices.Concat(must, open[sure:equal])
	slices.Sort(candidates)
	best := newSearch(h.resource.affinity, candidates, must, len(must)+missing-sure).run()
	return slices.DeleteFunc(best, func(d int) bool { return h.taken[d] > least })
}

// open returns the devices with a free slot that the request has the least of, and
// how many slots it has of each.
func (h *hand) open() (open []int, least int) {
	open = make([]int, 0, len(h.left))
	for d, left := range h.left {
		switch {
		case len(left) == 0:
		case len(open) == 0 || h.taken[d] < least:
			open, least = append(open[:0], d), h.taken[d]
		case h.taken[d] == least:
			open = append(open, d)
		}
	}
	return open, least
}
