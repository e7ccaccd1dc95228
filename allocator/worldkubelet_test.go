package allocator

import (
	"fmt"
	"slices"
)

// The actions of the kubelet.

func (w *world) pod(uid uint8) *pod {
	for i := range w.pods {
		if w.pods[i].uid == uid {
			return &w.pods[i]
		}
	}
	return nil
}

func (w *world) recorded(uid uint8) bool {
	for _, r := range w.records {
		if r.uid == uid {
			return true
		}
	}
	return false
}

// updateAllocated derives the allocated keys from the records.
func (w *world) updateAllocated() {
	w.allocated = 0
	for _, r := range w.records {
		if r.uid != 0 {
			w.allocated |= bit(r.key)
		}
	}
}

// prune is UpdateAllocatedDevices of the kubelet. If it removes a record, it also drops selections in flight.
func (w *world) prune() {
	if !w.ready {
		return
	}
	removed := false
	for i, r := range w.records {
		if r.uid == 0 {
			continue
		}
		if p := w.pod(r.uid); p == nil || !p.active {
			w.records[i], removed = record{}, true
		}
	}
	if removed {
		w.updateAllocated()
	}
}

// create starts the admission of a new pod, or of one that has lost its device, and selects a key.
func (w *world) create(key uint8, isInit bool) bool {
	if w.healthy&bit(key) == 0 || w.uids == 255 {
		return false
	}
	slot := w.slotFor(key)
	if slot < 0 {
		return false
	}
	before, allocated := w.records, w.allocated
	w.prune()
	if w.allocated&bit(key) != 0 {
		w.records, w.allocated = before, allocated
		return false
	}
	p := &w.pods[slot]
	if p.uid == 0 {
		w.uids++
		*p = pod{uid: w.uids, active: true, isInit: isInit}
	}
	w.allocated |= bit(key)
	p.key, p.stage, p.since, p.unknown = key, selected, w.tick, false
	return true
}

// slotFor returns a slot without a pod, or with one that has lost a device of the same resource; -1 if there is none.
func (w *world) slotFor(key uint8) int {
	return slices.IndexFunc(w.pods[:], func(p pod) bool {
		return p.uid == 0 || p.active && p.stage == idle && p.container == absent && keys[p.key].outlet == keys[key].outlet
	})
}

// allocate is the Allocate call.
func (w *world) allocate(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.stage != selected || sliced(p.key) {
		return false
	}
	k := keys[p.key]
	if !w.streams[k.outlet].open || w.gate.Allocate(k.Outlet, []string{k.ID}, true) != nil {
		p.stage, p.active = idle, false
		w.updateAllocated()
		w.free(slot)
		return true
	}
	p.stage, p.since, p.part = granted, w.tick, w.parts[p.key]
	p.holds = p.active
	w.checkAllocated("allocate")
	return true
}

func (w *world) insert(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.stage != granted {
		return false
	}
	for i := range w.records {
		if w.records[i].uid == 0 {
			if w.registered&bit(p.key) == 0 && !p.unknown { // decision 18 explains the exception
				w.fail("the kubelet panics: %v is not listed when pod %d is recorded", keys[p.key].Key, p.uid)
			}
			w.records[i] = record{p.uid, p.key}
			w.allocated |= bit(p.key)
			p.stage = inserted
			return true
		}
	}
	return false
}

// snapshot starts writing a checkpoint. Like the kubelet, it writes the healthy devices as the registered ones.
func (w *world) snapshot(uid uint8) bool {
	for i := range w.writes {
		if !w.writes[i].valid {
			w.writes[i] = write{true, uid, w.tick, checkpointFile{w.records, w.healthy}}
			return true
		}
	}
	return false
}

func (w *world) write(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.stage != inserted || !w.snapshot(p.uid) {
		return false
	}
	p.stage = writing
	return true
}

// land renames a checkpoint into place.
func (w *world) land(i uint8) bool {
	if !w.writes[i].valid {
		return false
	}
	w.disk = w.writes[i].file
	w.version++
	if p := w.pod(w.writes[i].pod); p != nil && p.uid != 0 && p.stage == writing {
		p.stage, p.sandbox = admitted, w.tick
		if !p.active {
			p.stage = idle
			w.free(uint8(w.slot(p)))
		}
	}
	w.writes[i] = write{}
	return true
}

func (w *world) slot(p *pod) int {
	for i := range w.pods {
		if &w.pods[i] == p {
			return i
		}
	}
	panic("unknown pod")
}

// process processes a list, and starts writing a checkpoint.
func (w *world) process(outlet uint8, stale bool) bool {
	s := &w.streams[outlet]
	m := &s.queue[0]
	if stale {
		m = &s.stale
	}
	if !m.valid || !w.writable() {
		return false
	}
	of := ofOutlet[outlet]
	w.registered = w.registered&^of | m.listed
	w.healthy = w.healthy&^of | m.healthy
	w.snapshot(0)
	if stale {
		s.stale = message{}
	} else {
		s.queue[0], s.queue[1] = s.queue[1], message{}
		s.stale = message{} // lists of the previous stream are not processed after later ones
	}
	return true
}

func (w *world) writable() bool {
	for i := range w.writes {
		if !w.writes[i].valid {
			return true
		}
	}
	return false
}

func (w *world) dropStale(outlet uint8) bool {
	s := &w.streams[outlet]
	if !s.stale.valid {
		return false
	}
	s.stale = message{}
	return true
}

func (w *world) connect(outlet uint8) bool {
	s := &w.streams[outlet]
	if s.open || !w.ledger.MayList() {
		return false
	}
	s.open, s.since, s.sentList, w.socket = true, w.tick, false, true
	return true
}

func (w *world) disconnect(outlet uint8) bool {
	s := &w.streams[outlet]
	if !s.open {
		return false
	}
	*s = stream{stale: s.queue[0]}
	s.stale.at = w.tick
	w.healthy &^= ofOutlet[outlet]
	return true
}

// getReady makes a restarted kubelet add its pods again. Until then, prune removes no records.
func (w *world) getReady() bool {
	if w.ready {
		return false
	}
	w.ready = true
	return true
}

// restartKubelet starts a kubelet with the checkpoint on disk.
func (w *world) restartKubelet() bool {
	w.ready, w.socket = false, false
	w.records = w.disk.records
	w.updateAllocated()
	w.healthy, w.registered = 0, 0
	w.writes = [3]write{}
	w.streams = [outlets]stream{}
	for i := range w.pods {
		p := &w.pods[i]
		p.reference = min(p.reference, referenced)
		if p.uid == 0 || sliced(p.key) { // claims are in the DRA manager's state
			continue
		}
		recorded := w.recorded(p.uid)
		switch {
		case recorded && p.stage == admitted:
		case recorded && p.stage >= inserted:
			p.stage, p.sandbox = admitted, w.tick
		default:
			p.stage = idle
		}
		if p.container == absent && p.stage == idle {
			p.holds = false
		}
		w.free(uint8(i))
	}
	return true
}

// tracks reports whether the agent tracks that a pod may hold its device. The creation of the container may then
// take any time, because the runtime reports the sandbox to the agent.
func (w *world) tracks(p *pod) bool {
	e, _ := w.ledger.Entry(keys[p.key].Key)
	return slices.Contains(e.pods, uidNames[p.uid])
}

// overdue reports whether the kubelet must call Allocate now.
func (w *world) overdue(p *pod) bool {
	return p.stage == selected && !sliced(p.key) && p.since+lag <= w.tick+1
}

// pass lets a tick pass, unless a bounded step is due.
func (w *world) pass() bool {
	for i := range w.pods {
		p := &w.pods[i]
		due := p.stage == granted || p.container == creating && p.reference == unreferenced && !w.tracks(p)
		if p.uid != 0 && (due && p.since < w.tick || w.overdue(p)) {
			return false
		}
	}
	for i := range w.writes {
		if w.writes[i].valid && w.writes[i].at < w.tick {
			return false
		}
	}
	for i := range w.streams {
		s := &w.streams[i]
		if s.queue[0].valid && s.queue[0].at+lag <= w.tick+1 || s.stale.valid && s.stale.at < w.tick {
			return false
		}
	}
	w.tick++
	return true
}

func (w *world) String() string {
	s := fmt.Sprintf("tick %d config %d layout %d ready %v healthy %08b registered %08b allocated %08b disk v%d %v\n",
		w.tick, w.config, w.layout, w.ready, w.healthy, w.registered, w.allocated, w.version, w.disk)
	s += fmt.Sprintf("  records %v complete %v bootstrap %+v\n", w.records, w.ledger.Complete(), w.ledger.bootstrap)
	for _, p := range w.pods {
		if p.uid != 0 {
			s += fmt.Sprintf("  pod %+v\n", p)
		}
	}
	for _, e := range w.ledger.entries {
		s += fmt.Sprintf("  %v %s %s accepts %v dirty %v seq %d pods %v\n", e.Key, e.State, e.Drain.Reason, e.accepts, e.dirty, e.seq, e.pods)
	}
	return s
}
