package allocator

import (
	"errors"
	"fmt"
	"slices"
)

// Prefer returns the IDs of the best linked set of devices that has the given size and includes the required ones.
// Among equal sets it prefers the one that leaves the best linked devices for later requests, then the first in the
// order of the resource, so that equal requests have equal results. The result is in the order of the resource.
//
// It takes a second replica of a device only if no other device is left, and prefers the devices with the fewest
// replicas in use.
//
// Unknown and unhealthy devices in available are skipped, because the kubelet's list may be outdated and an error
// would reject the pod. It is an error if fewer than size devices are left, if a required device is unknown, or if more
// than size devices are required. Duplicate IDs count once. Required devices need not be in available, nor be healthy.
func (r *Resource) Prefer(available, required []string, size int) ([]string, error) {
	var errs, unknown problems
	must := slices.Compact(r.positions(required, &errs))
	if err := errs.err(); err != nil {
		return nil, fmt.Errorf("required devices: %w", err)
	}
	if size < len(must) {
		return nil, fmt.Errorf("%w: %d devices of %s are required, but only %d requested; request at least as many",
			ErrMalformed, len(must), r.Name, size)
	}
	candidates := r.positions(available, &unknown) // skips unknown IDs
	free, err := r.usable(slices.Compact(candidates), must, size)
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

// usable returns must and the healthy ones of candidates, ascending. It is an error if they are fewer than size.
func (r *Resource) usable(candidates, must []int, size int) ([]int, error) {
	free := slices.Clone(must)
	var skipped problems
	for _, p := range candidates {
		if _, required := slices.BinarySearch(must, p); required {
			continue
		}
		if d := &r.Devices[r.slots[p].device]; !d.Healthy() {
			r.unhealthy(d, &skipped)
			continue
		}
		free = append(free, p)
	}
	if len(free) >= size {
		slices.Sort(free)
		return free, nil
	}
	kind, unhealthy := ErrMalformed, skipped.err()
	if unhealthy != nil {
		kind = ErrUnhealthy
	}
	return nil, errors.Join(
		fmt.Errorf("%w: %d devices of %s are requested, but only %d can be used; request fewer",
			kind, size, r.Name, len(free)),
		unhealthy)
}
