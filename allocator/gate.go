package allocator

import (
	"cmp"
	"sync"
	"time"
)

// Gate grants or refuses each Allocate and Prepare call according to the latest ledger. It counts the grants, so that
// an entry is not released while it is being granted. Its methods are safe for concurrent use and never block on I/O.
type Gate struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[Key]*gateEntry
	seq     uint64           // of the last grant; never reused, even if an entry is removed and added again
	claims  map[string]Claim // prepared, by UID
	changed chan struct{}    // closed by the next Advertise

	requested map[string]time.Time // when a claim last needed a device that another outlet has, by ID

	// reads are the last reads by Join that are at least a settle apart, the later one first.
	reads [2]podsRead
}

// podsRead is a read of the kubelet's records of the pods of claims.
type podsRead struct{ began, done time.Time }

// gateEntry is the gate's view of an entry.
type gateEntry struct {
	entry *Entry // of the ledger last passed to Withdraw or Advertise
	open  bool
	grant Grant
}

// Grant is the gate's record of an entry.
type Grant struct {
	Seq    uint64    // of the last grant
	Last   time.Time // of the last grant, before Allocate or Prepare returned
	Pods   []string  // UIDs of the known pods of the last claim; nil if granted by Allocate
	Closed bool      // by Close, and not advertised since

	Ended     []EndedClaim // since the latest ledger
	LastEnded uint64       // Number of the last ended claim
}

// NewGate returns a gate that grants nothing. now is the clock whose time is also passed to Next.
func NewGate(now func() time.Time) *Gate {
	return &Gate{now: now, entries: map[Key]*gateEntry{}, claims: map[string]Claim{}, changed: make(chan struct{}), requested: map[string]time.Time{}}
}

// Allocate grants all IDs of an outlet, or none. limiting reports whether memory limits will be set before a container
// starts; otherwise replicas with limited memory are refused. The error describes up to 10 problems.
func (g *Gate) Allocate(outlet string, ids []string, limiting bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs problems
	for _, id := range ids {
		switch d := g.entries[Key{outlet, id}]; {
		case d == nil:
			errs.add(ErrUnknown, "%s is not a device of %s; delete the pod to get another device", quoteID(id), outlet)
		case !d.open:
			errs.add(ErrUnhealthy, "%s of %s: %s; delete the pod to get another device", id, outlet,
				cmp.Or(d.entry.Message(), "not advertised yet"))
		case !limiting && d.entry.Part.Share.Class.limited():
			errs.add(ErrUnhealthy, "%s of %s: its memory limit was just enabled and cannot be set before the resource is registered again; delete the pod to try again", id, outlet)
		}
	}
	if err := errs.err(); err != nil {
		return err
	}
	for _, id := range ids {
		g.seq++
		d := g.entries[Key{outlet, id}]
		d.grant.Seq, d.grant.Last, d.grant.Pods = g.seq, g.now(), nil
	}
	return nil
}

// Part returns the part of an entry of the latest ledger.
func (g *Gate) Part(k Key) (part Part, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.entries[k]
	if d == nil {
		return Part{}, false
	}
	return d.entry.Part, true
}

// Grants returns the records of all entries that were granted or closed, or whose claim was unprepared.
func (g *Gate) Grants() map[Key]Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	grants := map[Key]Grant{}
	for k, d := range g.entries {
		if d.grant.Seq != 0 || d.grant.Closed || len(d.grant.Ended) > 0 {
			grants[k] = d.grant
		}
	}
	return grants
}

// Withdraw stops granting the entries that the ledger does not accept. Entries that it newly accepts are not granted
// before Advertise, because the ledger is not saved yet.
func (g *Gate) Withdraw(l Ledger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range l.entries {
		if d := g.entries[l.entries[i].Key]; d != nil {
			d.entry, d.open = &l.entries[i], d.open && l.entries[i].accepts
		}
	}
}

// Close closes the entries that were not granted since Next requested it, and reports whether it closed all.
func (g *Gate) Close(closings []Closing) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := true
	for _, c := range closings {
		d := g.entries[c.Key]
		if d == nil || d.grant.Seq != c.Seq {
			all = false
			continue
		}
		d.open, d.grant.Closed = false, true
	}
	return all
}

// Advertise grants exactly the entries that the ledger accepts. The ledger must be saved first.
func (g *Gate) Advertise(l Ledger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	entries := make(map[Key]*gateEntry, len(l.entries))
	for i := range l.entries {
		e := &l.entries[i]
		d := g.entries[e.Key]
		if d == nil {
			d = &gateEntry{}
		}
		d.entry, d.open = e, e.accepts
		d.grant.Ended = d.unobserved()
		if e.accepts {
			d.grant.Closed = false
		}
		entries[e.Key] = d
	}
	g.entries = entries
	close(g.changed)
	g.changed = make(chan struct{})
}
