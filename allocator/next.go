package allocator

import (
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Next returns the ledger that follows prev after an observation, and what the
// agent should do about entries that drain. It is pure. Calling it again with
// the same observation changes nothing but what time changes.
func Next(prev Ledger, o Observation, now time.Time) (Ledger, Todo) {
	n := &next{Ledger: prev, o: &o, now: now}
	n.entries = slices.Clone(prev.entries)
	n.wanted = slices.Clone(o.Wanted)
	slices.SortFunc(n.wanted, func(a, b Want) int { return a.compare(b.Key) })
	n.readBooks()
	n.add(n.unknown())
	for i := range n.entries {
		n.observe(&n.entries[i])
	}
	n.prove()
	n.add(n.unplanned())
	n.reconcile()
	n.entries = slices.DeleteFunc(n.entries, func(e Entry) bool { return e.State == "" })
	for i := range n.entries {
		e := &n.entries[i]
		e.accepts = n.accepts(e)
		if was, found := prev.Entry(e.Key); !found || was.State != e.State || !was.Fault.Same(e.Fault) {
			e.since = now
		}
	}
	return n.Ledger, n.todo()
}

// next is a ledger in the making.
type next struct {
	Ledger
	o      *Observation
	now    time.Time
	wanted []Want       // by outlet and ID
	held   map[Key]bool // by the checkpoint
	used   usage        // all that excludes other parts
	strays []Part       // see findStrays
}

// add adds entries; they replace those that there are.
func (n *next) add(more []Entry) {
	if len(more) == 0 {
		return
	}
	n.entries = append(more, n.entries...)
	slices.SortStableFunc(n.entries, func(a, b Entry) int { return a.compare(b.Key) })
	n.entries = slices.CompactFunc(n.entries, func(a, b Entry) bool { return a.Key == b.Key })
}

// unplanned returns new entries for what is wanted for the first time.
func (n *next) unplanned() (fresh []Entry) {
	for _, w := range n.wanted {
		if _, found := n.find(w.Key); !found {
			fresh = append(fresh, Entry{Key: w.Key, Part: w.Part, State: StateWaiting})
		}
	}
	return fresh
}

func (n *next) want(k Key) (Want, bool) {
	i, found := slices.BinarySearchFunc(n.wanted, k, func(w Want, k Key) int { return w.compare(k) })
	if !found {
		return Want{}, false
	}
	return n.wanted[i], true
}

// observe records what the gate and the kubelet did with an entry.
func (n *next) observe(e *Entry) {
	if g, known := n.o.Grants[e.Key]; known {
		if g.Seq != e.seq {
			e.seq, e.last, e.dirty, e.unbooked = g.Seq, g.Last, true, time.Time{}
			if e.State != StateDraining {
				e.pods = nil // bounded: those of earlier grants matter only while it drains
			}
		}
		if g.Closed && e.State == StateDraining {
			e.release(n.now)
		}
	}
	if e.State == StateDraining && !e.takenIn {
		e.takenIn = n.takenIn(e)
	}
}

// release makes an entry one that nobody holds. The gate was closed for it.
func (e *Entry) release(now time.Time) {
	*e = Entry{Key: e.Key, Part: e.Part, State: StateReleased, seq: e.seq, released: now}
}

// reconcile moves each entry towards the plan. It withdraws what is not wanted
// before it offers anything, so that the order of the keys decides only between
// entries that wait.
func (n *next) reconcile() {
	for i := range n.entries {
		e := &n.entries[i]
		w, wanted := n.want(e.Key)
		n.withdraw(e, w, wanted)
		if e.mayBeHeld() {
			n.used.add(e.Part)
		}
	}
	n.strays = n.findStrays()
	for i := range n.entries {
		e := &n.entries[i]
		if w, wanted := n.want(e.Key); wanted {
			n.offer(e, w)
		}
		n.clean(e)
	}
}

// withdraw ends the offer of an entry that is not wanted as it is.
func (n *next) withdraw(e *Entry, w Want, wanted bool) {
	same := wanted && w.Part == e.Part
	switch e.State {
	case StateAvailable, StateUnavailable:
		if !same {
			if e.withdrawn.IsZero() {
				e.withdrawn = n.now
			}
			e.State, e.Fault, e.Drain = StateDraining, gpu.Fault{}, Drain{Reason: n.reason(e), Since: n.now}
		}
	case StateDraining:
		switch {
		case e.Drain.Reason != ReasonUnknown:
			e.Drain.Reason = n.reason(e)
		case wanted:
			e.Part = w.Part // as for one that unknown finds wanted
		}
	case StateWaiting:
		if !wanted {
			e.State = StateReleased
		}
	}
	if e.State != StateReleased {
		return
	}
	switch {
	case wanted:
		e.State = StateWaiting
	case !n.now.Before(e.released.Add(listLag + settle)): // at once if it was never advertised
		e.State = ""
	}
}

// offer makes a wanted entry available, or unavailable if it has a fault, as soon as
// nothing overlaps it.
func (n *next) offer(e *Entry, w Want) {
	if w.Fault.None() && !w.Durable && e.State != StateAvailable {
		return
	}
	switch e.State {
	case StateWaiting:
		e.Part = w.Part
		if !n.unclaimed(e) || n.stray(e.Part) {
			return
		}
		n.used.add(e.Part)
	case StateDraining:
		if e.Part != w.Part || !n.unclaimed(e) {
			return
		}
	}
	e.Fault, e.Drain = w.Fault, Drain{}
	if !w.Fault.None() {
		if e.State == StateAvailable {
			e.withdrawn = n.now
		}
		e.State = StateUnavailable
		return
	}
	e.State, e.withdrawn, e.takenIn = StateAvailable, time.Time{}, false
}

// unclaimed reports whether no other entry excludes this one, nor could one that
// evidence has yet to name. What an earlier agent advertised, that agent had proved
// to be free of others.
func (n *next) unclaimed(e *Entry) bool {
	if n.begin.pending && !n.advertised(e.Key) {
		return false
	}
	if !e.mayBeHeld() {
		return n.used.fits(e.Part)
	}
	n.used.remove(e.Part)
	defer n.used.add(e.Part)
	return n.used.fits(e.Part)
}

// accepts reports whether the gate grants an entry. The kubelet may have selected
// it just before it was withdrawn, and a refusal is final for the pod: an entry that
// only the config withdraws is granted until it is released. That gives nothing out
// twice: what overlaps it waits for the release.
func (n *next) accepts(e *Entry) bool {
	return e.State == StateAvailable ||
		e.State == StateDraining && e.Drain.Reason == ReasonConfig && n.present(e.Part, true)
}

// reason is why an entry that is not wanted drains.
func (n *next) reason(e *Entry) Reason {
	switch {
	case n.present(e.Part, false):
		return ReasonConfig
	case slices.ContainsFunc(n.o.Present, func(p Present) bool { return p.Device.GPU == e.Part.GPU }):
		return ReasonRepartitioned
	}
	return ReasonGone
}

func (n *next) present(part Part, healthy bool) bool {
	return slices.ContainsFunc(n.o.Present, func(p Present) bool {
		return p.Device == part.Device() && (p.Fault.None() || !healthy)
	})
}
