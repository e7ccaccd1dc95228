package allocator

import (
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

// Lookup returns where in Devices those with these IDs are, ascending whatever the
// order of ids, so that the same set always gives the same answer; a device with
// several of its replicas once. Every problem with ids is in the one error.
func (r *Resource) Lookup(ids []string) ([]int, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no device of %s is named; name at least one", ErrMalformed, r.Name)
	}
	positions, problem := r.positions(ids)
	problems := []error{problem}
	devices := make([]int, 0, len(positions))
	last := none // of Devices
	for i, p := range positions {
		slot := &r.slots[p]
		if i > 0 && p == positions[i-1] {
			if i == 1 || p != positions[i-2] {
				problems = append(problems, fmt.Errorf("%w: %s of %s is named more than once; name each device once",
					ErrMalformed, slot.id, r.Name))
			}
			continue
		}
		if slot.device == last {
			continue
		}
		last = slot.device
		if d := &r.Devices[slot.device]; d.Fault != "" {
			problems = append(problems, r.unhealthy(d))
		}
		devices = append(devices, slot.device)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return devices, nil
}

// Lists says whether the kubelet knows the ID as one of the resource's, be it
// unhealthy.
func (r *Resource) Lists(id string) bool {
	_, known := r.position[id]
	return known
}

// positions returns the places of those ids that the resource knows,
// ascending and with repetitions, and an error that names all others.
func (r *Resource) positions(ids []string) ([]int, error) {
	positions := make([]int, 0, len(ids))
	var problems []error
	for _, id := range ids {
		p, known := r.position[id]
		if !known {
			problems = append(problems, fmt.Errorf(
				"%w: %q is not one of the %d devices of %s on this node; delete the pod, so that the kubelet chooses anew",
				ErrUnknown, id, len(r.slots), r.Name))
			continue
		}
		positions = append(positions, p)
	}
	slices.Sort(positions)
	return positions, errors.Join(problems...)
}

func (r *Resource) unhealthy(d *Device) error {
	return fmt.Errorf("%w: %s of %s: %s; delete the pod to get another device, or repair this one",
		ErrUnhealthy, d.ID, r.Name, d.Fault)
}
