package allocator

import (
	"errors"
	"fmt"
	"slices"
)

// Prefer returns the size devices, required ones included, that work together
// best. Among equally good sets it takes the one that leaves the best
// together for those who come later, then the one that stands first in the
// resource's order; so equal requests get equal answers. The result is in the
// resource's order.
//
// An available device that is unknown or unhealthy is passed over: the
// kubelet may be one update behind, and an error here costs the pod its
// admission. It is an error when that leaves fewer than size. Repeated IDs
// count once, and a required device is available by being required.
func (r *Resource) Prefer(available, required []string, size int) ([]string, error) {
	must, err := r.positions(required)
	if err != nil {
		return nil, fmt.Errorf("required devices: %w", err)
	}
	must = slices.Compact(must)
	if size < len(must) {
		return nil, fmt.Errorf("%w: %d devices of %s are required, but only %d asked for; ask for at least as many",
			ErrMalformed, len(must), r.Name, size)
	}
	offered, _ := r.positions(available)
	free, err := r.usable(slices.Compact(offered), must, size)
	if err != nil {
		return nil, err
	}
	switch {
	case size == len(must):
		free = must
	case size < len(free):
		free = newSearch(r.affinity, free, must, size).run()
	}
	ids := make([]string, len(free))
	for i, p := range free {
		ids[i] = r.Devices[p].ID
	}
	return ids, nil
}

// usable returns what there is to choose from: must and the healthy ones of
// offered, ascending.
func (r *Resource) usable(offered, must []int, size int) ([]int, error) {
	free := slices.Clone(must)
	var passedOver []error
	for _, p := range offered {
		if _, required := slices.BinarySearch(must, p); required {
			continue
		}
		if d := r.Devices[p]; d.Fault != "" {
			passedOver = append(passedOver, r.unhealthy(d))
			continue
		}
		free = append(free, p)
	}
	if len(free) >= size {
		slices.Sort(free)
		return free, nil
	}
	kind := ErrMalformed
	if len(passedOver) > 0 {
		kind = ErrUnhealthy
	}
	return nil, errors.Join(append([]error{fmt.Errorf("%w: %d devices of %s are asked for, but %d can be used; ask for fewer",
		kind, size, r.Name, len(free))}, passedOver...)...)
}
