package allocator

import (
	"slices"
	"time"
)

// The actions of the agent and its sources.

var uidNames [256]string

func init() {
	for i := range uidNames {
		uidNames[i] = string([]byte{'p', byte('0' + i/100), byte('0' + i/10%10), byte('0' + i%10)})
	}
}

// query requests the evidence of a source. deliver delivers the response, later or never.
func (w *world) query(source uint8) bool {
	if source == checkpoint && w.disk == (checkpointFile{}) && w.version == 0 {
		w.requested[source] = response{valid: true, requested: w.tick}
		return true
	}
	a := response{valid: true, requested: w.tick}
	switch source {
	case allocatable:
		a.keys = w.healthy
	case podResources:
		w.prune()
		for _, r := range w.records {
			if p := w.pod(r.uid); w.ready && r.uid != 0 && p != nil && p.active && !p.isInit {
				a.keys |= bit(r.key)
			}
		}
	case checkpoint:
		a.version, a.file = w.version, w.disk
	case containers:
		for i := range w.pods {
			p := &w.pods[i]
			if p.uid != 0 && p.container == running {
				a.containers[i] = record{p.uid, p.part}
			}
			if p.uid != 0 && (p.stage == admitted || p.container != absent) {
				a.sandboxes[i] = sandbox{p.uid, p.sandbox}
			}
		}
		a.references = w.references()
	}
	if source == allocations {
		a.keys = w.claimed()
	}
	w.requested[source] = a
	return true
}

func (w *world) deliver(source uint8) bool {
	if !w.requested[source].valid {
		return false
	}
	w.responses[source] = w.requested[source]
	w.responses[source].received = w.tick
	w.requested[source] = response{}
	if source == containers {
		pods := map[string][]string{}
		for _, c := range w.gate.Claims() {
			pods[c.UID] = w.responses[source].references.podsOf(c.UID)
		}
		w.gate.Join(pods, stamp(w.responses[source].requested))
	}
	return true
}

func (w *world) observation() Observation {
	o := Observation{Wanted: w.plan().wants(w.durable), Present: present[w.layout], Grants: w.gate.Grants(), Lists: map[string]List{}}
	for i := range w.streams {
		if s := &w.streams[i]; s.open {
			l := List{Stream: stamp(s.since)}
			if s.sentList {
				l.Sent = stamp(s.sent)
			}
			o.Lists[outletNames[i]] = l
		}
	}
	if a := &w.responses[allocatable]; a.valid {
		o.Allocatable = &Allocatable{Requested: stamp(a.requested), Received: stamp(a.received), IDs: a.keys.set()}
	}
	if a := &w.responses[podResources]; a.valid {
		o.Pods = &PodResources{Requested: stamp(a.requested), Received: stamp(a.received), Held: a.keys.set()}
	}
	if a := &w.responses[checkpoint]; a.valid {
		o.Checkpoint = a.checkpoint()
	}
	if a := &w.responses[containers]; a.valid {
		o.Runtime = a.runtime()
	}
	if a := &w.responses[allocations]; a.valid {
		o.Allocations = &Allocations{Requested: stamp(a.requested), Received: stamp(a.received), Claims: map[string]string{}}
		for k := range a.keys.set() {
			o.Allocations.Claims[k.ID] = "claim"
		}
	}
	for _, c := range w.gate.Claims() {
		c.Parts = []Part{w.partOf(c.Devices[0])}
		o.Claims = append(o.Claims, c)
	}
	if w.slice.written {
		o.Pool = Pool{Acknowledged: stamp(w.slice.at), IDs: map[string]bool{}}
		for k := range w.slice.listed.set() {
			o.Pool.IDs[k.ID] = true
		}
	}
	return o
}

// partOf returns the part of a claim's device, as far as the agent can determine it.
func (w *world) partOf(id string) Part {
	if id == gpu0 {
		return parts[0]
	}
	for _, e := range w.ledger.entries {
		if e.ID == id && e.Part.Extent != ExtentUnknown {
			return e.Part
		}
	}
	if part, found := w.migPart(keyIndex[Key{SliceOutlet, id}]); found {
		return parts[part]
	}
	return Part{}
}

func (m mask) set() map[Key]bool {
	set := map[Key]bool{}
	for i := range keys {
		if m&bit(uint8(i)) != 0 {
			set[keys[i].Key] = true
		}
	}
	return set
}

func (a *response) checkpoint() *Checkpoint {
	c := &Checkpoint{Requested: stamp(a.requested), Received: stamp(a.received), Registered: a.file.registered.set()}
	if a.version > 0 {
		c.Version = string([]byte{byte(a.version >> 8), byte(a.version)})
	}
	for _, r := range a.file.records {
		if r.uid == 0 {
			continue
		}
		h := Holding{Key: keys[r.key].Key, Pod: uidNames[r.uid]}
		if o := keys[r.key].outlet; o != 2 && o != 3 { // not a MIG device, of whose UUID the former part is unknown
			h.Part = parts[0]
		}
		c.Held = append(c.Held, h)
	}
	return c
}

func (a *response) runtime() *Runtime {
	r := &Runtime{Requested: stamp(a.requested), Received: stamp(a.received), Sandboxes: map[string]time.Time{}}
	for i := range podSlots {
		if c := a.containers[i]; c.uid != 0 {
			r.Containers = append(r.Containers, Container{Pod: uidNames[c.uid], Part: parts[c.key].Device()})
		}
		if s := a.sandboxes[i]; s.uid != 0 {
			r.Sandboxes[uidNames[s.uid]] = stamp(s.created)
		}
	}
	return r
}

// reconcile is one reconcile of the agent, without its requests to sources. If the state cannot be saved, it only
// withdraws.
func (w *world) reconcile(saves bool) bool {
	earlier := w.ledger
	w.checkpointed = w.responses[checkpoint].file.records
	w.ledger, w.todo = Next(w.ledger, w.observation(), w.now())
	w.gate.Withdraw(w.ledger)
	if saves {
		w.saved = w.ledger.Save()
		w.gate.Advertise(w.ledger)
	}
	before, listed, were := w.offers, mask(0), w.recordParts(earlier)
	w.offers = 0
	for i := range w.ledger.entries {
		e := &w.ledger.entries[i]
		k := keyIndex[e.Key]
		listed |= bit(k)
		was, _ := earlier.Entry(e.Key)
		if was.State == StateDraining && e.released != was.released {
			w.checkReleased(k)
		}
		offers := e.State == StateAvailable
		if offers && was.State != StateAvailable && !w.durable {
			w.fail("%v becomes available before its spec is on disk", e.Key)
		}
		switch {
		case offers && before&bit(k) != 0:
			w.offers |= bit(k)
		case offers && saves:
			w.offers |= bit(k)
			w.checkFree(k)
		case !offers && before&bit(k) != 0 && w.plan().has(k, were[k]):
			w.fail("%v is withdrawn without a reason", e.Key)
		}
	}
	for e := range earlier.Outlet(SliceOutlet) {
		if k := keyIndex[e.Key]; e.State == StateDraining && listed&bit(k) == 0 {
			w.checkReleased(k)
			if e.Drain.Reason == ReasonConfig {
				w.checkUnallocated(k)
			}
		}
	}
	w.checkRequest(listed)
	if w.listed |= listed; saves {
		w.listed = listed
	}
	return true
}

// checkRequest fails if the list of all claims is requested while no device moves from the slice to another outlet. It
// moves while the ledger has it for the slice and the config does not, although the layout still has it. It may also be
// requested if the config has it for the slice again, until its spec is on disk: the ledger keeps it draining until then.
// Neither a GPU that moves to the slice nor one that is repartitioned or gone requires the list.
func (w *world) checkRequest(listed mask) {
	moves := false
	for k := sliceKey; k < uint8(len(keys)); k++ {
		exists := slices.Contains(present[w.layout], Present{Device: parts[w.parts[k]].Device()})
		moves = moves || listed&bit(k) != 0 && exists && (!w.durable || !w.plan().has(k, w.parts[k]))
	}
	if w.todo.Allocations && !moves {
		w.fail("the list of all claims is requested, but no device leaves the slice")
	}
}

// recordParts updates the part of each key, and returns the previous ones.
func (w *world) recordParts(earlier Ledger) [len(keys)]uint8 {
	were := w.parts
	for i := range w.ledger.entries {
		e := &w.ledger.entries[i]
		k := keyIndex[e.Key]
		w.parts[k] = partIndex(e.Part, w.parts[k])
		was, _ := earlier.Entry(e.Key)
		if e.dirty && e.seq == was.seq && (!was.dirty || was.Part != e.Part) {
			w.resetShare(k)
			w.resetMIG(k)
		}
	}
	return were
}

// checkReleased fails if a pod holds a key that is released.
func (w *world) checkReleased(key uint8) {
	for i := range w.pods {
		if p := &w.pods[i]; p.holds && p.key == key {
			w.fail("%v is released while pod %d holds it", keys[key].Key, p.uid)
		}
	}
}

// checkUnallocated fails if a device moves from the slice to another outlet while it is allocated to an unprepared
// claim, which could then never be prepared. It ignores allocations from after the slice was published without it.
func (w *world) checkUnallocated(key uint8) {
	for i := range w.pods {
		if p := &w.pods[i]; p.uid != 0 && p.active && p.key == key && p.stage == selected && p.since < w.slice.at {
			w.fail("%v leaves the slice while the claim of pod %d has it", keys[key].Key, p.uid)
		}
	}
}

// partIndex returns the index of a part in parts, or fallback if it is not in parts.
func partIndex(part Part, fallback uint8) uint8 {
	for i := range parts {
		if parts[i] == part {
			return uint8(i)
		}
	}
	return fallback
}

func (o planned) has(key, part uint8) bool {
	for _, one := range o {
		if one.key == key && one.part == part {
			return true
		}
	}
	return false
}

// closeEntries closes the entries that the last reconcile proved free.
func (w *world) closeEntries() bool {
	if len(w.todo.Close) == 0 {
		return false
	}
	w.gate.Close(w.todo.Close)
	w.todo.Close = nil
	return true
}

// send sends the list of an outlet if it has changed, or again if requested.
func (w *world) send(outlet uint8, again bool) bool {
	s := &w.streams[outlet]
	m := message{true, w.listed & ofOutlet[outlet], w.offers & ofOutlet[outlet], w.tick}
	same := s.sentList && s.last.listed == m.listed && s.last.healthy == m.healthy
	if !s.open || s.queue[1].valid || same && !again {
		return false
	}
	w.checkListed(outlet, m.listed)
	if s.queue[0].valid {
		s.queue[1] = m
	} else {
		s.queue[0] = m
	}
	s.sentList, s.sent, s.last = true, w.tick, m
	return true
}

// checkListed fails if a list lacks an ID that a pod holds. After a start without state, IDs that the checkpoint lacked
// at the latest reconcile are exempt: the kubelet has recorded them before it receives the list, so it does not panic,
// and a later checkpoint contains them.
func (w *world) checkListed(outlet uint8, listed mask) {
	for _, r := range w.records {
		if r.uid == 0 || keys[r.key].outlet != outlet || listed&bit(r.key) != 0 {
			continue
		}
		p := w.pod(r.uid)
		if p != nil && p.active && (w.ledger.Complete() || slices.Contains(w.checkpointed[:], r)) {
			w.fail("%v is held by pod %d but not listed", keys[r.key].Key, r.uid)
		}
	}
}

// restartAgent replaces the agent, with or without the state and the claim records of the earlier one.
func (w *world) restartAgent(withState, withRecords bool) bool {
	for i := range uint8(outlets) {
		w.disconnect(i)
	}
	var saved *Saved
	if withState {
		saved = &w.saved
	}
	for i := range w.pods {
		w.pods[i].unknown = w.pods[i].unknown || !withState && w.pods[i].stage == selected
	}
	w.ledger = Start(saved, !w.socket, w.now())
	w.todo = Todo{}
	claims := w.gate.Claims()
	w.newGate()
	w.restoreClaims(claims, withRecords)
	if w.listed = 0; !withState {
		w.offers = 0
	}
	w.responses, w.requested = [sources]response{}, [sources]response{}
	return w.reconcile(true)
}

// resetShare sets the parts of pods on a shared device to the part that an agent without state assumes. The size of a
// time-sliced share exists only in the accounting.
func (w *world) resetShare(key uint8) {
	for i := range w.pods {
		if p := &w.pods[i]; p.holds && p.key == key && parts[p.part].Share.Count > 0 && parts[w.parts[key]].Share.Count > 0 {
			p.part = w.parts[key]
		}
	}
}

// resetMIG sets the parts of pods with a MIG device of the slice to that of the present MIG device with its UUID, which an
// agent without state assumes. Their containers have it, since the driver refuses to repartition the GPU while a container
// runs.
func (w *world) resetMIG(key uint8) {
	part, found := w.migPart(key)
	for i := range w.pods {
		if p := &w.pods[i]; found && p.holds && p.key == key {
			p.part = part
		}
	}
}

func (w *world) configure(config uint8) bool {
	if w.config == config {
		return false
	}
	w.config = config
	return true
}

// partition changes the layout of the GPU. The driver refuses while a container runs, but a GPU can be lost at any
// time.
func (w *world) partition(layout uint8) bool {
	if w.layout == layout {
		return false
	}
	for i := range w.pods {
		if w.pods[i].container != absent && layout != layoutLost {
			return false
		}
	}
	w.layout, w.durable = layout, false
	return true
}

func (w *world) writeSpec() bool {
	if w.durable {
		return false
	}
	w.durable = true
	return true
}

// runAgent writes the spec, reconciles, sends changed lists and performs all requests of the Todo. If late is set,
// Allocate calls come between the decision to close and the closing.
func (w *world) runAgent(late bool) bool {
	w.durable = true
	for i := range uint8(outlets) {
		w.connect(i)
	}
	w.reconcile(true)
	for range keys {
		for i := range uint8(podSlots) {
			_ = late && w.allocate(i)
		}
		if !w.closeEntries() {
			break
		}
		w.reconcile(true)
	}
	for i := range uint8(outlets) {
		w.send(i, w.todo.Resend == outletNames[i])
	}
	w.publish()
	w.watchSlice()
	for source, due := range [sources]bool{w.todo.Allocatable, w.todo.Pods, w.todo.Checkpoint, w.todo.Runtime, w.todo.Allocations} {
		if due {
			w.query(uint8(source))
			w.deliver(uint8(source))
		}
	}
	return true
}
