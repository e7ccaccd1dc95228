package allocator

// The actions of containers and of the users of pods.

func (w *world) start(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.stage != admitted || !p.active || p.container != absent || !w.booked(p.uid) {
		return false
	}
	p.container, p.since = creating, w.tick
	return true
}

func (w *world) appear(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.container != creating {
		return false
	}
	p.container = running
	return true
}

func (w *world) crash(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.container != running || !p.active {
		return false
	}
	p.container = absent
	if p.stage == idle { // its device was lost at a restart of the kubelet
		p.has = false
	}
	return true
}

// end ends a pod in order: its containers are gone.
func (w *world) end(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || !p.active || p.container == creating || p.stage != admitted && p.stage != idle {
		return false
	}
	p.active, p.container, p.has = false, absent, false
	return w.free(slot)
}

// force deletes a pod from the API at once. Its container runs on for a while.
func (w *world) force(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || !p.active {
		return false
	}
	p.active = false
	if p.container == absent {
		p.has = false
	}
	w.free(slot)
	return true
}

// stop ends the container of a force-deleted pod.
func (w *world) stop(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.active || p.container != running {
		return false
	}
	p.container, p.has = absent, false
	w.free(slot)
	return true
}

// free makes room for another pod.
func (w *world) free(slot uint8) bool {
	p := &w.pods[slot]
	if !p.active && p.container == absent && (p.stage == idle || p.stage == admitted) {
		*p = pod{}
	}
	return true
}
