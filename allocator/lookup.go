package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Why a request for devices cannot be met; test with errors.Is. An error of
// this package can hold several of them.
var (
	ErrMalformed = errors.New("malformed request") // empty, a duplicate, an impossible size
	ErrUnknown   = errors.New("unknown device")
	ErrUnhealthy = errors.New("unhealthy device")
)

// Lookup returns the positions in Devices of those with these IDs, ascending whatever the
// order of ids, so that equal sets get equal answers; a device with several of its
// replicas once. Whether they may be allocated is for the Gate to say. The error describes every
// problem with ids, up to a limit.
func (r *Resource) Lookup(ids []string) ([]int, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no device of %s is named; name at least one", ErrMalformed, r.Name)
	}
	var wrong problems
	positions := r.positions(ids, &wrong)
	devices := make([]int, 0, len(positions))
	last := none // of Devices
	for i, p := range positions {
		slot := &r.slots[p]
		if i > 0 && p == positions[i-1] {
			if i == 1 || p != positions[i-2] {
				wrong.add(ErrMalformed, "%s of %s is named more than once; name each device once", slot.id, r.Name)
			}
			continue
		}
		if slot.device == last {
			continue
		}
		last = slot.device
		devices = append(devices, slot.device)
	}
	if err := wrong.err(); err != nil {
		return nil, err
	}
	return devices, nil
}

// Lists reports whether the ID is one of the resource's, healthy or not.
func (r *Resource) Lists(id string) bool {
	_, known := r.position[id]
	return known
}

// positions returns the positions of those ids that the resource lists, ascending and
// with repetitions, and adds the others to wrong.
func (r *Resource) positions(ids []string, wrong *problems) []int {
	positions := make([]int, 0, len(ids))
	for _, id := range ids {
		p, known := r.position[id]
		if !known {
			wrong.add(ErrUnknown, "%s is not one of the %d devices of %s on this node; delete the pod, so that the kubelet selects devices again",
				shown(id), len(r.slots), r.Name)
			continue
		}
		positions = append(positions, p)
	}
	slices.Sort(positions)
	return positions
}

func (r *Resource) unhealthy(d *Device, wrong *problems) {
	wrong.add(ErrUnhealthy, "%s of %s: %s; delete the pod to get another device, or repair this one", d.ID, r.Name, cmp.Or(d.Why, d.Fault.String()))
}
