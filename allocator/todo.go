package allocator

import "time"

// Todo lists what Next needs to prove entries free and to release them. A source is listed again if it does not
// respond.
type Todo struct {
	// Close lists the entries to close at the Gate. Next must be called again afterwards.
	Close []Closing

	// Resend is an outlet whose list must be sent again, even if unchanged, to make the kubelet write its checkpoint;
	// empty for none.
	Resend string

	// Sources to query.
	Allocatable, Pods, Checkpoint, Runtime, Allocations bool

	// Again is when Next must be called at the latest; zero for never.
	Again time.Time
}

// Closing is an entry that is free unless the gate granted it after Seq.
type Closing struct {
	Key
	Seq uint64
}

func (n *next) todo() Todo {
	t := &planner{next: n, sent: n.lastSent()}
	for i := range n.entries {
		e := &n.entries[i]
		switch {
		case e.State == StateReleased:
			t.again(e.released.Add(listLag + settle))
		case e.State == StateDraining && n.free(e):
			t.Close = append(t.Close, Closing{e.Key, e.seq})
		case e.State == StateDraining:
			t.drain(e)
		case e.dirty || len(e.ended) > 0:
			t.every = idleInterval
			switch {
			case e.sliced() && t.now.Before(e.joins.Until.Add(claimPatience)):
				t.every = claimInterval
			case e.sliced():
				t.every = drainInterval
			}
			t.requestProof(e)
		case e.State == StateWaiting && n.stray(e.Part):
			t.every = drainInterval
			t.requestRuntime(n.start)
		}
	}
	t.requestBootstrapProof()
	return t.Todo
}

// planner builds a Todo.
type planner struct {
	*next
	Todo
	sent  time.Time     // when the last list of any outlet was sent
	every time.Duration // poll interval for the current entry
}

func (n *next) lastSent() (last time.Time) {
	for _, l := range n.o.Lists {
		if l.Sent.After(last) {
			last = l.Sent
		}
	}
	return last
}

// again requests a call of Next by the given time.
func (t *planner) again(at time.Time) {
	if t.Again.IsZero() || at.Before(t.Again) {
		t.Again = at
	}
}

// reached reports whether a time has been reached, and otherwise requests a call of Next then.
func (t *planner) reached(at time.Time) bool {
	if t.now.Before(at) {
		t.again(at)
		return false
	}
	return true
}

// poll reports whether a source is due, given when it was last queried.
func (t *planner) poll(queried time.Time) bool {
	return queried.IsZero() || t.reached(queried.Add(t.every))
}

// drain requests the sources that the release of an entry requires.
func (t *planner) drain(e *Entry) {
	t.every = drainInterval
	switch {
	case t.deselected(e):
	case t.moves(e):
		t.requestAllocations(e)
	default:
		t.again(e.withdrawn.Add(3 * settle))
		if !e.sliced() {
			t.requestAllocatable(t.o.Lists[e.Outlet], e.withdrawn)
		}
	}
	t.requestProof(e)
}

// requestAllocations requests the devices allocated to claims, once nothing else prevents the release of an entry.
func (t *planner) requestAllocations(e *Entry) {
	if e.processed.IsZero() || e.dirty && !t.unheld(e) || !t.reached(e.unselected()) {
		return
	}
	a := t.o.Allocations
	if a == nil || a.Requested.Before(e.unselected()) || t.reached(a.Requested.Add(allocationInterval)) {
		t.Allocations = true
	}
}

// requestProof requests the sources that prove an entry free.
func (t *planner) requestProof(e *Entry) {
	switch {
	case len(e.ended) > 0:
		for _, c := range e.ended {
			t.requestEnded(c.At, c.Joins)
		}
	case !e.dirty, e.sliced() && e.unrecorded.IsZero(): // clean, or its claim is still prepared
	case e.unrecorded.IsZero():
		t.requestCheckpoint(e.last, t.o.Pods != nil && t.o.Pods.Held[e.Key], t.running(e))
	case e.sliced():
		t.requestEnded(e.unrecorded, e.joins)
	case t.reached(e.queryFrom()):
		t.requestRuntime(e.queryFrom())
	}
}

// requestEnded requests the runtime's containers after the end of a claim and, if a pod that is not known may have joined
// the claim, again once its container is listed.
func (t *planner) requestEnded(at time.Time, j Joins) {
	t.requestRuntime(at.Add(1))
	if !t.Runtime && t.joined(j) && t.reached(j.visibleAt()) {
		t.requestRuntime(j.visibleAt())
	}
}

// requestAllocatable requests the devices that the kubelet reports as allocatable, which show whether it has processed
// a list that was sent after the withdrawal.
func (t *planner) requestAllocatable(list List, withdrawn time.Time) {
	from := list.Stream.Add(settle)
	if list.Sent.After(from) {
		from = list.Sent
	}
	if list.Sent.Before(withdrawn) || !t.reached(from) {
		return
	}
	if a := t.o.Allocatable; a == nil || a.Requested.Before(from) || t.poll(a.Requested) {
		t.Allocatable = true
	}
}

// requestBootstrapProof requests the sources that end the bootstrap.
func (t *planner) requestBootstrapProof() {
	t.every = drainInterval
	if !t.bootstrap.pending {
		return
	}
	from := t.bootstrap.from(t.start)
	if t.reached(from) && !t.checkpoint.readSince(from) {
		t.Checkpoint = true
	}
	switch at := t.bootstrap.unrecorded.Add(t.margin()); {
	case t.bootstrap.unrecorded.IsZero():
		t.requestCheckpoint(t.start, false, false)
	case t.reached(at):
		t.requestRuntime(at)
	}
}

// requestRuntime requests the runtime's containers, immediately if it was not queried since the given time, and then
// at the poll interval.
func (t *planner) requestRuntime(after time.Time) {
	if r := t.o.Runtime; r == nil || r.Requested.Before(after) || t.poll(r.Requested) {
		t.Runtime = true
	}
}

// requestCheckpoint requests the checkpoint, and makes the kubelet write one that contains all grants up to last,
// except those of terminated pods: the kubelet removes these on a PodResources request, and writes when it receives a
// list. No list is sent again while PodResources (listed) or the runtime (running) reports a holder.
func (t *planner) requestCheckpoint(last time.Time, listed, running bool) {
	after := last.Add(2 * settle)
	if !t.reached(after) {
		return
	}
	if t.checkpoint.requested.Before(after) { // read the current version first, to recognize a later one
		t.Checkpoint = true
		return
	}
	pods := t.o.Pods
	t.Pods = pods == nil || t.poll(pods.Requested) || t.Pods
	if t.now.Before(t.sent.Add(settle)) { // the kubelet is about to write
		t.every = drainInterval
	}
	t.Checkpoint = t.checkpoint.requested.Before(t.sent) || t.poll(t.checkpoint.requested) || t.Checkpoint
	if listed {
		return
	}
	t.requestRuntime(after)
	if running || pods == nil || pods.Requested.Before(t.sent) || !t.reached(t.sent.Add(settle)) {
		return
	}
	t.Resend = t.stream()
}

// stream returns the first outlet, by name, whose list was sent; empty if there is none. A list of any outlet makes the
// kubelet write its whole checkpoint.
func (t *planner) stream() string {
	first := ""
	for outlet, l := range t.o.Lists {
		if !l.Sent.IsZero() && (first == "" || outlet < first) {
			first = outlet
		}
	}
	return first
}
