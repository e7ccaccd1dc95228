package allocator

// The actions of containers and pods.

func (w *world) start(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.stage != admitted || !p.active || p.container != absent || !sliced(p.key) && !w.recorded(p.uid) {
		return false
	}
	if _, exists := w.migPart(p.key); p.key >= firstMIGKey && !exists { // the device nodes of its instances are missing
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
	if p.stage == idle { // its device was lost in a restart of the kubelet
		p.holds = false
	}
	return true
}

// end terminates a pod and its container.
func (w *world) end(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || !p.active || p.container == creating || p.stage != admitted && p.stage != idle {
		return false
	}
	p.active, p.container, p.holds = false, absent, false
	return w.free(slot)
}

// force force-deletes a pod. Its container keeps running until stop.
func (w *world) force(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || !p.active {
		return false
	}
	p.active = false
	if p.container == absent {
		p.holds = false
	}
	w.free(slot)
	return true
}

// stop stops the container of a force-deleted pod, or the admission of one with a claim.
func (w *world) stop(slot uint8) bool {
	p := &w.pods[slot]
	switch {
	case p.uid == 0 || p.active:
		return false
	case p.container == running:
		p.container, p.holds = absent, false
	case sliced(p.key) && p.stage == selected: // the kubelet gives up on Prepare
		p.stage = idle
	default:
		return false
	}
	w.free(slot)
	return true
}

// free frees the slot if its pod has ended and the kubelet's record of its claim lacks it.
func (w *world) free(slot uint8) bool {
	p := &w.pods[slot]
	if !p.active && p.container == absent && p.reference == unreferenced && (p.stage == idle || p.stage == admitted) {
		*p = pod{}
	}
	return true
}
