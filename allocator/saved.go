package allocator

import (
	"cmp"
	"slices"
	"time"
)

// Saved is the part of a ledger that outlives the agent.
type Saved struct {
	// Complete is Ledger.Complete; if false, the next agent needs the same evidence as without state.
	Complete bool         `json:"complete"`
	Entries  []SavedEntry `json:"entries"`
}

// SavedEntry is the part of an entry that outlives the agent.
type SavedEntry struct {
	Key
	Part     Part     `json:"part"`
	State    State    `json:"state"`
	Features Features `json:"features,omitempty"`
	Capacity Amount   `json:"capacity,omitzero"`
	Drain    Drain    `json:"drain,omitzero"`

	// Pods are the UIDs of the pods that may hold a device of the slice. Not every runtime reports which containers have
	// devices of claims, so the next agent needs the pods to find their sandboxes.
	Pods []string `json:"pods,omitempty"`
}

// Save returns the state to save. It must be on disk before the ledger is advertised, so that the next agent finds
// every entry that was advertised.
func (l Ledger) Save() Saved {
	saved := Saved{Complete: l.Complete(), Entries: []SavedEntry{}}
	for _, e := range l.entries {
		if e.State == StateWaiting {
			if e.released.IsZero() {
				continue // never advertised
			}
			e.State = StateReleased // the kubelet may still have it in its list
		}
		s := SavedEntry{e.Key, e.Part, e.State, e.Features, e.Capacity, e.Drain, nil}
		if e.dirty && e.sliced() {
			s.Pods = distinct(slices.Concat(e.pods, e.holders))
		}
		saved.Entries = append(saved.Entries, s)
	}
	return saved
}

// Start returns the initial ledger of an agent. saved is the state of the earlier agent; nil if it is missing. Every
// entry that is not released may be held. Damaged entries are omitted; if there is one, the agent needs the same
// evidence as without state.
//
// fresh reports whether the kubelet started after the earlier agent ended, so that it has no grants of that agent in
// flight. That is the case if the device-plugins directory has no socket of ours: a kubelet deletes all sockets when it
// starts, and an agent leaves its own when it ends.
func Start(saved *Saved, fresh bool, now time.Time) Ledger {
	l := Ledger{start: now, bootstrap: bootstrap{pending: saved == nil || !saved.Complete, fresh: fresh}}
	if saved == nil {
		return l
	}
	n := next{Ledger: l}
	var entries []Entry
	for _, s := range saved.Entries {
		if s.Outlet == "" || s.ID == "" || !s.Part.valid() {
			n.bootstrap.pending = true // find the entry by its evidence
			continue
		}
		e := Entry{Key: s.Key, Part: s.Part, State: s.State, Features: s.Features, Capacity: s.Capacity, Drain: s.Drain, dirty: true,
			last: now, withdrawn: now, pods: slices.Compact(slices.Sorted(slices.Values(s.Pods)))}
		if e.sliced() {
			e.claimEnded(EndedClaim{At: now, Pods: e.pods, Joins: Joins{Until: now}})
		}
		switch s.State {
		case StateReleased:
			e = Entry{Key: s.Key, Part: s.Part, State: s.State, released: now}
		case StateAvailable:
			e.withdrawn = time.Time{}
		case StateUnavailable, StateDraining:
		default: // of a later version
			e.State, e.Drain = StateDraining, Drain{ReasonUnknown, now}
		}
		e.since = cmp.Or(e.Drain.Since, now)
		entries = append(entries, e)
	}
	n.add(entries)
	return n.Ledger
}
