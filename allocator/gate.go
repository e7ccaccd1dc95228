package allocator

import (
	"sync"
	"time"
)

// Gate is what every Allocate passes. It grants what the latest ledger accepts, and
// counts the grants, so that no entry is released while it is granted. Its
// methods may be called from different goroutines, and wait for nothing but each other.
type Gate struct {
	now func() time.Time

	mu    sync.Mutex
	doors map[Key]*door
	seq   uint64 // of the last grant; never used twice, also if an entry is removed and comes back
}

// door is the gate's view of an entry.
type door struct {
	entry *Entry // as last withdrawn or advertised
	open  bool
	grant Grant
}

// Grant is what the gate did with an entry.
type Grant struct {
	Seq    uint64    // of the last grant
	Last   time.Time // before it was answered
	Closed bool      // by Close, and not advertised since
}

// NewGate returns a gate that grants nothing. Its clock is that of Next.
func NewGate(now func() time.Time) *Gate { return &Gate{now: now, doors: map[Key]*door{}} }

// Allocate grants all of an outlet's IDs, or none. The error describes every
// problem with them, up to a limit.
func (g *Gate) Allocate(outlet string, ids []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var wrong problems
	for _, id := range ids {
		switch d := g.doors[Key{outlet, id}]; {
		case d == nil:
			wrong.add(ErrUnknown, "%s is no device of %s; delete the pod, so that the kubelet selects devices again", shown(id), outlet)
		case !d.open:
			wrong.add(ErrUnhealthy, "%s of %s: %s; delete the pod to get another device", id, outlet, d.entry.Why())
		}
	}
	if err := wrong.err(); err != nil {
		return err
	}
	for _, id := range ids {
		g.seq++
		d := g.doors[Key{outlet, id}]
		d.grant.Seq, d.grant.Last = g.seq, g.now()
	}
	return nil
}

// Grants returns what was granted and closed.
func (g *Gate) Grants() map[Key]Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	grants := map[Key]Grant{}
	for k, d := range g.doors {
		if d.grant != (Grant{}) {
			grants[k] = d.grant
		}
	}
	return grants
}

// Withdraw stops granting what a ledger does not accept. It grants nothing more
// than before.
func (g *Gate) Withdraw(l Ledger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range l.entries {
		if d := g.doors[l.entries[i].Key]; d != nil {
			d.entry, d.open = &l.entries[i], d.open && l.entries[i].accepts
		}
	}
}

// Close closes the entries that were not granted since Next decided so, and
// reports whether those were all.
func (g *Gate) Close(closings []Closing) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := true
	for _, c := range closings {
		d := g.doors[c.Key]
		if d == nil || d.grant.Seq != c.Seq {
			all = false
			continue
		}
		d.open, d.grant.Closed = false, true
	}
	return all
}

// Advertise grants what a ledger accepts from now on, and nothing else. The ledger
// has to be saved first.
func (g *Gate) Advertise(l Ledger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	doors := make(map[Key]*door, len(l.entries))
	for i := range l.entries {
		e := &l.entries[i]
		d := g.doors[e.Key]
		if d == nil {
			d = &door{}
		}
		d.entry, d.open = e, e.accepts
		if e.accepts {
			d.grant.Closed = false
		}
		doors[e.Key] = d
	}
	g.doors = doors
}
