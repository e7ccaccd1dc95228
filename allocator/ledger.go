package allocator

import (
	"iter"
	"slices"
	"time"
)

const (
	// settle is the upper bound of one step of the kubelet that no evidence shows:
	// a message in transit, from an answer to Allocate to the kubelet's books, from a
	// snapshot of the books to the renamed checkpoint, from the options of a
	// container to the container in the runtime.
	settle = 5 * time.Second

	// drainInterval is the time between two questions to a source whose last answer proved nothing, while
	// an entry drains. No rule depends on it, nor on idleInterval.
	drainInterval = 2 * time.Second

	// idleInterval is the same for entries that are offered. Those that nobody holds any more are found by
	// it, so that a planned change moves them at once.
	idleInterval = 15 * time.Second

	// listLag is the upper bound of the time from sending a list until the kubelet has
	// processed it: it syncs a file for each list. It also bounds the time from the
	// kubelet's choice of a device until it calls Allocate, where other plugins can take
	// theirs. Only the time that a released ID stays listed depends on it.
	listLag = 60 * time.Second
)

// Ledger is all IDs that were ever given out and may still be held, and those that
// are or will be offered. It is immutable; Next makes the one that follows. The
// zero Ledger is empty and complete.
type Ledger struct {
	entries []Entry // by outlet and ID
	start   time.Time
	begin   begin
	books   books
}

// begin is the proof that the ledger has all that an earlier agent granted, if its
// state is missing. Until then only what that agent advertised can be available.
type begin struct {
	pending  bool
	fresh    bool      // the kubelet started after the last agent ended
	unbooked time.Time // as in Entry, for all IDs that no entry has
}

// books is what readings of the checkpoint have in common.
type books struct {
	version string
	asked   time.Time // for the latest reading

	// landed is before the present version was renamed into place: the time of
	// asking for the last reading that found another one. Zero: unknown.
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

// Outlet yields the entries of an outlet: the list that the kubelet gets. An
// entry is healthy if and only if it is available.
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

// Complete reports whether all that an earlier agent granted is known to be in
// the ledger.
func (l Ledger) Complete() bool { return !l.begin.pending }

// MayList reports whether lists may be sent. Without the state of an earlier agent, the
// first list waits until the kubelet has recorded the grants of that agent, and has the
// IDs of its checkpoint: the kubelet panics if a list lacks an ID that it is about to
// record.
func (l Ledger) MayList() bool {
	return !l.begin.pending || l.books.readSince(l.begin.from(l.start))
}

// readSince reports whether the checkpoint was read after a time.
func (b books) readSince(at time.Time) bool { return !b.asked.IsZero() && !b.asked.Before(at) }

// from is when all that an earlier agent granted is in the books of the kubelet.
func (b begin) from(start time.Time) time.Time {
	if b.fresh {
		return start
	}
	return start.Add(settle)
}
