package allocator

import (
	"iter"
	"slices"
	"time"
)

const (
	// settle bounds the duration of each step of the kubelet that leaves no evidence: delivering a message, recording an
	// Allocate response, renaming a checkpoint into place after the snapshot of the records, and creating a container in
	// the runtime after generating its options.
	settle = 5 * time.Second

	// drainInterval is the interval between requests to a source while an entry drains and the last response proved
	// nothing. No rule depends on this interval, the next two, claimPatience or allocationInterval.
	drainInterval = 2 * time.Second

	// idleInterval is the interval for advertised entries. Entries whose pods have ended are proved free in advance, so
	// that a planned change releases them immediately.
	idleInterval = 15 * time.Second

	// claimInterval is the interval for a device whose claim was unprepared less than claimPatience ago, since the next
	// claim may be waiting for it. A container that hangs longer ends after minutes, or never.
	claimInterval = 500 * time.Millisecond
	claimPatience = 30 * time.Second

	// allocationInterval is the interval for ResourceClaims. It is longer, because each response contains all claims of
	// the cluster.
	allocationInterval = 4 * time.Second

	// scheduleLag bounds the time from the API server's acknowledgment of slices until schedulers have received them and
	// have recorded their earlier allocations in the claims. A later allocation brings the device back (see Gate.Requested).
	scheduleLag = time.Second

	// listLag bounds the time until the kubelet has processed a list, since it syncs its checkpoint to disk for each. It
	// also bounds the time from the selection of a device to the Allocate call, which other plugins can delay. Only the
	// time that a released ID stays listed depends on listLag.
	listLag = 60 * time.Second
)

// Ledger contains all IDs that were ever advertised and may still be held, and those that are or will be advertised. It
// is immutable; Next returns its successor. The zero Ledger is empty and complete.
type Ledger struct {
	entries    []Entry // by outlet and ID
	start      time.Time
	bootstrap  bootstrap
	checkpoint checkpointHistory
}

// bootstrap is the proof, after a start with missing or damaged state, that the ledger contains all grants of the
// earlier agent. While it is pending, only entries that the earlier agent advertised can be available.
type bootstrap struct {
	pending    bool
	fresh      bool      // the kubelet started after the earlier agent ended
	unrecorded time.Time // as in Entry, for all IDs without an entry
}

// checkpointHistory tracks successive readings of the checkpoint.
type checkpointHistory struct {
	version   string
	requested time.Time // when the latest reading started

	// landed is a time before the current version was renamed into place: the start of the last reading of another
	// version. It is zero if unknown.
	landed time.Time
}

// Entries yields all entries by outlet and ID.
func (l Ledger) Entries() iter.Seq[Entry] { return slices.Values(l.entries) }

// Entry returns the entry with a key.
func (l Ledger) Entry(k Key) (Entry, bool) {
	i, found := l.find(k)
	if !found {
		return Entry{}, false
	}
	return l.entries[i], true
}

func (l Ledger) find(k Key) (int, bool) {
	return slices.BinarySearchFunc(l.entries, k, func(e Entry, k Key) int { return e.compare(k) })
}

// Outlet yields the entries of an outlet. For a resource of the device plugin, they are the kubelet's list, in which
// only available entries are healthy.
func (l Ledger) Outlet(name string) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		i, _ := l.find(Key{Outlet: name})
		for ; i < len(l.entries) && l.entries[i].Outlet == name; i++ {
			if !yield(l.entries[i]) {
				return
			}
		}
	}
}

// Complete reports whether the ledger is proved to contain all grants of earlier agents.
func (l Ledger) Complete() bool { return !l.bootstrap.pending }

// MayList reports whether lists may be sent. The kubelet panics if a list lacks an ID that it is about to record. So
// without the state of the earlier agent, the first list waits until the kubelet has recorded the grants of that agent,
// and contains the IDs of the checkpoint.
func (l Ledger) MayList() bool {
	return !l.bootstrap.pending || l.checkpoint.readSince(l.bootstrap.from(l.start))
}

// readSince reports whether the checkpoint was read since a time.
func (h checkpointHistory) readSince(at time.Time) bool {
	return !h.requested.IsZero() && !h.requested.Before(at)
}

// from returns the time from which the kubelet has recorded all grants of the earlier agent.
func (b bootstrap) from(start time.Time) time.Time {
	if b.fresh {
		return start
	}
	return start.Add(settle)
}
