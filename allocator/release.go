package allocator

import (
	"slices"
	"time"
)

// The release of an entry that drains. Step by step:
//
//  1. The kubelet reports it as not allocatable, or three settles have passed since it
//     was withdrawn. This only spares pods a refusal.
//  2. An entry that was not granted since it was last free is free.
//  3. Otherwise a checkpoint that was renamed into place at least two settles after the
//     last grant must not name it. The kubelet records a grant within one settle, and a
//     snapshot of its records is on disk within another. From then on the kubelet starts
//     no container with the entry; but one may be starting, or still running: a
//     force-deleted pod leaves the records at once.
//  4. The runtime, asked a settle later, must have no container with the part.
//  5. The gate closes the entry, unless it has granted it meanwhile.
//
// An agent without the state of the one before does the same for all that no entry
// accounts for (begin).

// readBooks records since when the present checkpoint can be on disk.
func (n *next) readBooks() {
	c := n.o.Checkpoint
	if c == nil || c.Asked.Before(n.books.asked) {
		return
	}
	if c.Version != n.books.version {
		n.books.version, n.books.landed = c.Version, n.books.asked
	}
	n.books.asked = c.Asked
}

// unknown returns entries for what evidence names and no entry accounts for. An
// earlier agent offered it, so it was granted before the start, if it was. One that is
// still wanted has the part that the plan gives it: its former part is not recorded
// anywhere.
func (n *next) unknown() (adopted []Entry) {
	n.held = map[Key]bool{}
	if n.o.Checkpoint == nil {
		return nil
	}
	adopt := func(k Key, part Part) {
		if e, found := n.Entry(k); found && (e.State != StateWaiting || !e.released.IsZero()) {
			return
		}
		if w, wanted := n.want(k); wanted {
			part = w.Part
		}
		adopted = append(adopted, Entry{
			Key: k, Part: part, State: StateDraining, Drain: Drain{ReasonUnknown, n.now},
			withdrawn: n.start, dirty: true, last: n.start,
		})
	}
	for _, h := range n.o.Checkpoint.Held {
		n.held[h.Key] = true
		adopt(h.Key, h.Part)
	}
	if n.begin.pending {
		for k := range n.o.Checkpoint.Registered {
			adopt(k, Part{})
		}
	}
	return adopted
}

// advertised reports whether an earlier agent, whose state is missing, advertised
// an ID at its end.
func (n *next) advertised(k Key) bool {
	return n.MayList() && n.o.Checkpoint != nil && n.o.Checkpoint.Registered[k]
}

// prove records which dirty entries the checkpoint proves to be out of the kubelet's
// records, and which pods it names for the others.
func (n *next) prove() {
	if n.o.Checkpoint == nil {
		return
	}
	for _, h := range n.o.Checkpoint.Held {
		i, _ := n.find(h.Key)
		e := &n.entries[i]
		if at, found := slices.BinarySearch(e.pods, h.Pod); e.dirty && !found {
			e.pods = slices.Insert(slices.Clone(e.pods), at, h.Pod)
		}
	}
	for i := range n.entries {
		e := &n.entries[i]
		if e.dirty && e.unbooked.IsZero() && n.written(e.last) && !n.held[e.Key] {
			e.unbooked = n.o.Checkpoint.Answered
		}
	}
	n.proveBegin()
}

// proveBegin ends the begin once the evidence is complete.
func (n *next) proveBegin() {
	b := &n.begin
	if !b.pending {
		return
	}
	if b.unbooked.IsZero() && (b.fresh || n.written(n.start)) {
		b.unbooked = n.o.Checkpoint.Answered
	}
	b.pending = b.unbooked.IsZero() || n.o.Runtime == nil || n.o.Runtime.Asked.Before(b.unbooked.Add(n.margin()))
}

// margin is how long after a checkpoint the runtime has all containers that it may
// lack. A kubelet that has started since starts none for what is not in its checkpoint.
func (n *next) margin() time.Duration {
	if n.begin.fresh {
		return 0
	}
	return settle
}

// written reports whether the checkpoint contains all grants up to a time that the
// kubelet still tracks.
func (n *next) written(last time.Time) bool {
	return !n.books.landed.Before(last.Add(2 * settle))
}

// takenIn reports whether the kubelet has processed the list that withdrew an entry. A
// stream that has just begun proves nothing: before its first list the kubelet has no
// healthy device at all.
func (n *next) takenIn(e *Entry) bool {
	list, a := n.o.Lists[e.Outlet], n.o.Allocatable
	return a != nil && !a.IDs[e.Key] && !list.Sent.IsZero() &&
		!list.Sent.Before(e.withdrawn) && !a.Asked.Before(list.Sent) && !a.Asked.Before(list.Stream.Add(settle))
}

// told reports whether step 1 is over.
func (n *next) told(e *Entry) bool {
	return e.takenIn || !n.now.Before(e.withdrawn.Add(3*settle))
}

// free reports whether all steps before the last are over.
func (n *next) free(e *Entry) bool { return n.told(e) && (!e.dirty || n.unheld(e)) }

// unheld reports whether steps 3 and 4 are over.
func (n *next) unheld(e *Entry) bool {
	r := n.o.Runtime
	return !e.unbooked.IsZero() && r != nil && !r.Asked.Before(e.unbooked.Add(settle)) && !n.running(e)
}

// clean records that nobody holds an entry that is offered. Later it can then be released at once.
func (n *next) clean(e *Entry) {
	if e.dirty && e.State != StateDraining && n.unheld(e) && !n.o.Runtime.Absent {
		e.dirty, e.unbooked, e.pods = false, time.Time{}, nil
	}
}

// running reports whether a container may have the part: one that the runtime lists, or
// one that a pod with a ready sandbox is about to start.
func (n *next) running(e *Entry) bool {
	r := n.o.Runtime
	return r == nil || n.stray(e.Part) || slices.ContainsFunc(e.pods, func(pod string) bool { return r.Sandboxes[pod] })
}

// findStrays returns what containers have that the checkpoint explains by no entry
// of their pod. All shares of a device look the same to the runtime, so without
// this the holder of one would seem to hold all.
func (n *next) findStrays() []Part {
	if n.o.Runtime == nil {
		return nil
	}
	var strays []Part
	for _, c := range n.o.Runtime.Containers {
		if !n.explained(c) {
			strays = append(strays, c.Part)
		}
	}
	return strays
}

func (n *next) explained(c Container) bool {
	return n.o.Checkpoint != nil && slices.ContainsFunc(n.o.Checkpoint.Held, func(h Holding) bool {
		if h.Pod != c.Pod {
			return false
		}
		e, _ := n.Entry(h.Key)
		return e.Part.Touches(c.Part)
	})
}

// stray reports whether a container that no entry explains may have the part.
func (n *next) stray(part Part) bool {
	return n.o.Runtime == nil || slices.ContainsFunc(n.strays, part.Touches)
}
