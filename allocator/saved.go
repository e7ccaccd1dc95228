package allocator

import (
	"cmp"
	"time"
)

// Saved is what the next agent needs of a ledger.
type Saved struct {
	// Complete is Ledger.Complete: what an agent without the state of the one before has
	// saved need not be all there is.
	Complete bool         `json:"complete"`
	Entries  []SavedEntry `json:"entries"`
}

// SavedEntry is what the next agent needs of an entry.
type SavedEntry struct {
	Key
	Part  Part  `json:"part"`
	State State `json:"state"`
	Drain Drain `json:"drain,omitzero"`
}

// Save returns what to save. It has to be on disk before the ledger is advertised, so
// that the next agent finds everything that was offered.
func (l Ledger) Save() Saved {
	saved := Saved{Complete: l.Complete(), Entries: []SavedEntry{}}
	for _, e := range l.entries {
		if e.State == StateWaiting {
			if e.released.IsZero() {
				continue // never offered
			}
			e.State = StateReleased // as far as the kubelet may remember
		}
		saved.Entries = append(saved.Entries, SavedEntry{e.Key, e.Part, e.State, e.Drain})
	}
	return saved
}

// Start returns the ledger that an agent starts with, from what the one before
// saved; nil if that is missing. Anything may be held that is not released.
//
// fresh is whether the kubelet started after the agent before ended, so that it
// granted nothing to this kubelet: the directory of the plugins has no socket of ours.
// A kubelet that starts deletes all of them, and an agent that ends leaves its own.
func Start(saved *Saved, fresh bool, now time.Time) Ledger {
	l := Ledger{start: now, begin: begin{pending: saved == nil || !saved.Complete, fresh: fresh}}
	if saved == nil {
		return l
	}
	n := next{Ledger: l}
	var entries []Entry
	for _, s := range saved.Entries {
		e := Entry{Key: s.Key, Part: s.Part, State: s.State, Drain: s.Drain, dirty: true, last: now, withdrawn: now}
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
