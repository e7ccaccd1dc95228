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
// Of a device that is shared it takes a second replica only when there is no
// other device to take from, and it takes from those that are shared least.
//
// An available device that is unknown or unhealthy is passed over: the
// kubelet may be one update behind, and an error here costs the pod its
// admission. It is an error when that leaves fewer than size. Repeated IDs
// count once, and a required device is available by being required.
func (r *Resource) Prefer(available, required []string, size int) ([]string, error) {
	var wrong, unknown problems
	must := slices.Compact(r.positions(required, &wrong))
	if err := wrong.err(); err != nil {
		return nil, fmt.Errorf("required devices: %w", err)
	}
	if size < len(must) {
		return nil, fmt.Errorf("%w: %d devices of %s are required, but only %d asked for; ask for at least as many",
			ErrMalformed, len(must), r.Name, size)
	}
	offered := r.positions(available, &unknown) // passed over
	free, err := r.usable(slices.Compact(offered), must, size)
	if err != nil {
		return nil, err
	}
	chosen := r.spread(free, must, size)
	ids := make([]string, len(chosen))
	for i, p := range chosen {
		ids[i] = r.slots[p].id
	}
	return ids, nil
}

// usable returns the devices to choose from: must and the healthy ones of offered,
// ascending.
func (r *Resource) usable(offered, must []int, size int) ([]int, error) {
	free := slices.Clone(must)
	var passedOver problems
	for _, p := range offered {
		if _, required := slices.BinarySearch(must, p); required {
			continue
		}
		if d := &r.Devices[r.slots[p].device]; !d.Healthy() {
			r.unhealthy(d, &passedOver)
			continue
		}
		free = append(free, p)
	}
	if len(free) >= size {
		slices.Sort(free)
		return free, nil
	}
	kind, sick := ErrMalformed, passedOver.err()
	if sick != nil {
		kind = ErrUnhealthy
	}
	return nil, errors.Join(fmt.Errorf("%w: %d devices of %s are requested, but %d can be used; request fewer", kind, size, r.Name, len(free)), sick)
}
