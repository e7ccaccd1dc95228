package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Errors of requests for devices, for errors.Is. An error of this package can wrap several of them.
var (
	ErrMalformed = errors.New("malformed request") // no device, a duplicate, or an impossible size
	ErrUnknown   = errors.New("unknown device")
	ErrUnhealthy = errors.New("unhealthy device")
)

// Lookup returns the positions in Devices of the devices with these IDs, ascending, so that equal sets have equal
// results. A device with several replicas in ids occurs once. Lookup ignores health; the Gate decides whether a device
// may be allocated. The error describes up to 10 problems.
func (r *Resource) Lookup(ids []string) ([]int, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no device of %s is requested; request at least one", ErrMalformed, r.Name)
	}
	var errs problems
	positions := r.positions(ids, &errs)
	devices := make([]int, 0, len(positions))
	last := none // index in Devices
	for i, p := range positions {
		slot := &r.slots[p]
		if i > 0 && p == positions[i-1] {
			if i == 1 || p != positions[i-2] {
				errs.add(ErrMalformed, "%s of %s is requested more than once; request each device once", slot.id, r.Name)
			}
			continue
		}
		if slot.device == last {
			continue
		}
		last = slot.device
		devices = append(devices, slot.device)
		if len(ids) > 1 && r.Devices[slot.device].OneReplica {
			errs.add(ErrMalformed, "%d replicas of %s are requested, but %s allows one for each container (failRequestsGreaterThanOne); request 1",
				len(ids), r.Name, r.Devices[slot.device].ID)
		}
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	return devices, nil
}

// Has reports whether the resource lists an ID, healthy or not.
func (r *Resource) Has(id string) bool {
	_, found := r.position[id]
	return found
}

// positions returns the indexes of ids in slots, ascending and with duplicates. It adds unknown IDs to errs.
func (r *Resource) positions(ids []string, errs *problems) []int {
	positions := make([]int, 0, len(ids))
	for _, id := range ids {
		p, found := r.position[id]
		if !found {
			errs.add(ErrUnknown, "%s is not one of the %d devices of %s on this node; delete the pod to get another device",
				quoteID(id), len(r.slots), r.Name)
			continue
		}
		positions = append(positions, p)
	}
	slices.Sort(positions)
	return positions
}

func (r *Resource) unhealthy(d *Device, errs *problems) {
	errs.add(ErrUnhealthy, "%s of %s: %s; delete the pod to get another device, or fix this one",
		d.ID, r.Name, cmp.Or(d.Reason, d.Fault.String()))
}
