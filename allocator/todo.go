package allocator

import "time"

// Todo is what releases the entries that drain. Sources that are asked for and do
// not answer are asked for again.
type Todo struct {
	// Close are the entries to close at the Gate; then Next has to be called again.
	Close []Closing

	// Resend is an outlet whose list is to be sent once more as it is: the kubelet
	// then writes its checkpoint. Empty for none.
	Resend string

	// What to ask now.
	Allocatable, Pods, Checkpoint, Runtime bool

	// Again is when Next has to be called even if nothing else happens; zero for never.
	Again time.Time
}

// Closing is an entry that nobody holds, unless the gate granted it after Seq.
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
		case e.dirty:
			t.every = idleInterval
			t.prove(e)
		case e.State == StateWaiting && n.stray(e.Part):
			t.every = drainInterval
			t.askRuntime(n.start)
		}
	}
	t.complete()
	return t.Todo
}

// planner collects a Todo.
type planner struct {
	*next
	Todo
	sent  time.Time     // when the last list of any outlet was sent
	every time.Duration // how often the entry at hand is worth a question
}

func (n *next) lastSent() (last time.Time) {
	for _, l := range n.o.Lists {
		if l.Sent.After(last) {
			last = l.Sent
		}
	}
	return last
}

// again asks for a reconcile at a time.
func (t *planner) again(at time.Time) {
	if t.Again.IsZero() || at.Before(t.Again) {
		t.Again = at
	}
}

// reached reports whether a time has come, and otherwise asks for a reconcile then.
func (t *planner) reached(at time.Time) bool {
	if t.now.Before(at) {
		t.again(at)
		return false
	}
	return true
}

// poll reports whether a source that was last asked then is due.
func (t *planner) poll(asked time.Time) bool { return asked.IsZero() || t.reached(asked.Add(t.every)) }

// drain asks for what an entry needs for its release.
func (t *planner) drain(e *Entry) {
	t.every = drainInterval
	if !t.told(e) {
		t.again(e.withdrawn.Add(3 * settle))
		t.askAllocatable(t.o.Lists[e.Outlet], e.withdrawn)
	}
	t.prove(e)
}

// prove asks for what proves that nobody holds an entry.
func (t *planner) prove(e *Entry) {
	switch {
	case !e.dirty:
	case e.unbooked.IsZero():
		t.write(e.last, t.o.Pods != nil && t.o.Pods.Held[e.Key], t.running(e))
	case t.reached(e.unbooked.Add(settle)):
		t.askRuntime(e.unbooked.Add(settle))
	}
}

// askAllocatable asks whether the kubelet has taken in a list that was sent after a
// time.
func (t *planner) askAllocatable(list List, withdrawn time.Time) {
	from := list.Stream.Add(settle)
	if list.Sent.After(from) {
		from = list.Sent
	}
	if list.Sent.Before(withdrawn) || !t.reached(from) {
		return
	}
	if a := t.o.Allocatable; a == nil || a.Asked.Before(from) || t.poll(a.Asked) {
		t.Allocatable = true
	}
}

// complete asks for what ends the begin.
func (t *planner) complete() {
	t.every = drainInterval
	if !t.begin.pending {
		return
	}
	from := t.begin.from(t.start)
	if t.reached(from) && !t.books.readSince(from) {
		t.Checkpoint = true
	}
	switch at := t.begin.unbooked.Add(t.margin()); {
	case t.begin.unbooked.IsZero():
		t.write(t.start, false, false)
	case t.reached(at):
		t.askRuntime(at)
	}
}

// askRuntime asks the runtime unless it was asked after a time, and then polls it.
func (t *planner) askRuntime(after time.Time) {
	if r := t.o.Runtime; r == nil || r.Asked.Before(after) || t.poll(r.Asked) {
		t.Runtime = true
	}
}

// write has a checkpoint written that contains all grants up to then, without
// those of pods that have ended: the kubelet drops them when it is asked for the
// pods, and writes when it gets a list. As long as a pod seems to hold the entry
// the kubelet need not write.
func (t *planner) write(last time.Time, listed, running bool) {
	after := last.Add(2 * settle)
	if !t.reached(after) {
		return
	}
	if t.books.asked.Before(after) { // the version before the one to come
		t.Checkpoint = true
		return
	}
	pods := t.o.Pods
	t.Pods = pods == nil || t.poll(pods.Asked) || t.Pods
	if t.now.Before(t.sent.Add(settle)) { // the kubelet is about to write
		t.every = drainInterval
	}
	t.Checkpoint = t.books.asked.Before(t.sent) || t.poll(t.books.asked) || t.Checkpoint
	if listed {
		return
	}
	t.askRuntime(after)
	if running || pods == nil || pods.Asked.Before(t.sent) || !t.reached(t.sent.Add(settle)) {
		return
	}
	t.Resend = t.stream()
}

// stream is an outlet that has one, empty for none: any list makes the kubelet
// write all.
func (t *planner) stream() string {
	first := ""
	for outlet, l := range t.o.Lists {
		if !l.Sent.IsZero() && (first == "" || outlet < first) {
			first = outlet
		}
	}
	return first
}
