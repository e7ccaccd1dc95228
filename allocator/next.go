package allocator

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Next returns the successor of prev after an observation, and the requests for missing evidence. It is pure. With the
// same observation and time, it is idempotent.
func Next(prev Ledger, o Observation, now time.Time) (Ledger, Todo) {
	n := &next{Ledger: prev, o: &o, now: now}
	n.entries = slices.Clone(prev.entries)
	n.wanted = slices.Clone(o.Wanted)
	slices.SortFunc(n.wanted, func(a, b Want) int { return a.compare(b.Key) })
	for i := range n.wanted {
		w := &n.wanted[i]
		w.Fault = cmp.Or(w.Fault, o.foreignFault(w.Part), o.cordon(w.Key, w.Part))
	}
	n.observeCheckpoint()
	n.add(n.unknown())
	for i := range n.entries {
		n.observe(&n.entries[i])
	}
	n.prove()
	n.proveUnprepared()
	n.add(n.newlyWanted())
	n.reconcile()
	n.entries = slices.DeleteFunc(n.entries, func(e Entry) bool { return e.State == "" }) // see withdraw
	for i := range n.entries {
		e := &n.entries[i]
		e.accepts = n.accepts(e)
		if was, found := prev.Entry(e.Key); !found || was.State != e.State || !was.Fault.Same(e.Fault) {
			e.since = now
		}
	}
	return n.Ledger, n.todo()
}

// next is the ledger that Next computes.
type next struct {
	Ledger
	o      *Observation
	now    time.Time
	wanted []Want       // by outlet and ID
	held   map[Key]bool // according to the checkpoint
	used   usage        // parts that exclude others
	strays []Part       // see findStrays
}

// add adds entries, and replaces those with the same keys.
func (n *next) add(more []Entry) {
	if len(more) == 0 {
		return
	}
	n.entries = append(more, n.entries...)
	slices.SortStableFunc(n.entries, func(a, b Entry) int { return a.compare(b.Key) })
	n.entries = slices.CompactFunc(n.entries, func(a, b Entry) bool { return a.Key == b.Key })
}

// newlyWanted returns entries for wants that have none.
func (n *next) newlyWanted() (fresh []Entry) {
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

// observe updates an entry from the gate's grants and the kubelet's progress.
func (n *next) observe(e *Entry) {
	if g, found := n.o.Grants[e.Key]; found {
		if g.Seq != e.seq {
			e.seq, e.last, e.dirty, e.unrecorded = g.Seq, g.Last, true, time.Time{}
			if e.State != StateDraining && !e.shared() {
				e.pods = nil // bounds their number: pods of earlier grants matter only while it drains
			}
			e.addPods(g.Pods)
		}
		for _, c := range g.Ended {
			if c.Number > e.lastEnded {
				e.claimEnded(c)
				e.lastEnded = c.Number
			}
		}
		if g.Closed && e.State == StateDraining {
			e.release(n.now)
		}
	}
	if e.State == StateDraining && e.processed.IsZero() && n.listProcessed(e) {
		e.processed = n.now
	}
	if e.claim = ""; n.moves(e) && n.o.Allocations != nil {
		e.claim = n.o.Allocations.Claims[e.ID]
	}
}

// release resets an entry that is free and closed at the gate.
func (e *Entry) release(now time.Time) {
	*e = Entry{Key: e.Key, Part: e.Part, State: StateReleased, seq: e.seq, lastEnded: e.lastEnded, released: now}
}

// reconcile moves each entry towards the plan. It withdraws unwanted entries before it offers any, so that the order of
// keys matters only between waiting entries.
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

// withdraw drains an entry unless it is wanted with the same part, and releases a waiting entry that is not wanted. A
// released entry that is wanted again becomes waiting. Once the ID of any other released entry does not have to be
// listed any more, the state becomes empty, and Next removes the entry.
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
			e.Part = n.adopted(e.Key, e.Part, w.Part)
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
	case e.sliced(), !n.now.Before(e.released.Add(listLag + settle)): // immediately if it was never advertised, since released is zero
		e.State = ""
	}
}

// offer makes a wanted entry available once its CDI device is on disk, or unavailable if it has a fault, unless another
// entry excludes it.
func (n *next) offer(e *Entry, w Want) {
	if w.Fault.None() && !w.Ready && e.State != StateAvailable {
		return
	}
	switch e.State {
	case StateWaiting:
		e.Part = w.Part
		if !n.fits(e) || n.stray(e.Part) {
			return
		}
		n.used.add(e.Part)
	case StateDraining:
		if e.Part != w.Part || !n.fits(e) {
			return
		}
	}
	e.Fault, e.Drain = w.Fault, Drain{}
	if !w.Fault.None() {
		if e.State == StateAvailable || e.State == StateDraining {
			e.withdrawn, e.processed = n.now, time.Time{}
		}
		e.State = StateUnavailable
		return
	}
	if e.State != StateAvailable && e.dirty {
		e.claimEnded(EndedClaim{At: n.now, Pods: e.pods, Joins: e.joins})
	}
	e.State, e.Features, e.Capacity, e.withdrawn, e.processed = StateAvailable, w.Features, w.Capacity, time.Time{}, time.Time{}
}

// fits reports whether no other entry excludes this one. While the bootstrap may still find such an entry, only entries
// that the earlier agent advertised fit, since that agent had proved them free.
func (n *next) fits(e *Entry) bool {
	if n.bootstrap.pending && !n.advertised(e.Key) {
		return false
	}
	if !e.mayBeHeld() {
		return n.used.fits(e.Part)
	}
	n.used.remove(e.Part)
	defer n.used.add(e.Part)
	return n.used.fits(e.Part)
}

// accepts reports whether the gate grants an entry. The kubelet may have selected it just before it was withdrawn, and
// a refusal rejects the pod. So an entry that only the config withdraws is granted until it is released; overlapping
// entries wait for its release. A cordoned entry is not granted.
func (n *next) accepts(e *Entry) bool {
	return e.State == StateAvailable ||
		e.State == StateDraining && e.Drain.Reason == ReasonConfig && n.present(e.Part, true) && n.o.cordon(e.Key, e.Part).None()
}

// reason returns why an unwanted entry drains.
func (n *next) reason(e *Entry) Reason {
	switch {
	case n.present(e.Part, false):
		return ReasonConfig
	case slices.ContainsFunc(n.o.Present, func(p Present) bool { return p.Device.GPU == e.Part.GPU }):
		return ReasonRepartitioned
	}
	return ReasonGone
}

// present reports whether the inventory contains the device of a part; if healthy is set, without a fault. The monitor
// is present if any device is.
func (n *next) present(part Part, healthy bool) bool {
	if part == monitorPart {
		return len(n.o.Present) > 0
	}
	return slices.ContainsFunc(n.o.Present, func(p Present) bool {
		return p.Device == part.Device() && (p.Fault.None() || !healthy)
	})
}
