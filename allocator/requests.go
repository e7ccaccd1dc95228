package allocator

import (
	"slices"
	"time"
)

// requestPeriod is how long a device stays requested after the last Prepare call that it was not available to. The
// kubelet repeats the call within 90 s, and each call waits for the device.
const requestPeriod = 2 * time.Minute

// request records that a claim needs a device that another outlet has, or that is in the slice because of an earlier
// request. It reports false for other devices, and for a part of a device, since the slice would offer it as a whole. A
// scheduler that does not receive the current slices can allocate a device after it has left them, for example for up to
// a minute after the API server was away.
func (g *Gate) request(c Claim, id string) bool {
	_, requested := g.requested[id]
	requested = requested && g.entries[Key{SliceOutlet, id}] != nil
	for k, d := range g.entries {
		requested = requested || k.Outlet != SliceOutlet && DeviceOf(k.ID) == id && d.entry.mayReturn()
	}
	if !requested || c.Amounts[id].Partial() {
		return false
	}
	g.requested[id] = g.now()
	return true
}

// mayReturn reports whether the device of an entry exists, so that it can be in the slice instead.
func (e *Entry) mayReturn() bool {
	return e.State != StateReleased && (e.State != StateDraining || e.Drain.Reason == ReasonConfig)
}

// Requested returns the IDs of the devices that claims need and that other outlets have or had, sorted, and the time at
// which the first of them is no longer requested; zero if there are none. See Policy.Requested.
func (g *Gate) Requested() (ids []string, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, at := range g.requested {
		end := at.Add(requestPeriod)
		if !g.now().Before(end) {
			delete(g.requested, id)
			continue
		}
		ids = append(ids, id)
		if until.IsZero() || end.Before(until) {
			until = end
		}
	}
	slices.Sort(ids)
	return ids, until
}
