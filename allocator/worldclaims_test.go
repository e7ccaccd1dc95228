package allocator

// The actions of the scheduler, of the kubelet's DRA manager, and of the agent for its ResourceSlice. Pods do not
// share claims. A claim has the UID of its pod.

// poolVersion is a version of the ResourceSlice.
type poolVersion struct {
	written bool
	at      int32
	listed  mask
	shared  bool // claims share the GPU
}

// publish writes the slice.
func (w *world) publish() bool {
	now := poolVersion{true, w.tick, w.offers & ofOutlet[sliceOutlet], w.parts[sliceKey] == sharedPart}
	if w.slice == now {
		return false
	}
	w.slice = now
	return true
}

// watchSlice delivers the slice to the scheduler.
func (w *world) watchSlice() bool {
	if w.scheduled == w.slice {
		return false
	}
	w.scheduled = w.slice
	return true
}

// schedule allocates the GPU, or half of it, to the claim of a new pod. The claim of a pod that has ended, or was
// force-deleted, is gone.
func (w *world) schedule(half bool) bool {
	if w.scheduled.listed == 0 || w.uids == 255 || half && !w.scheduled.shared {
		return false
	}
	slot, halves := -1, 0
	for i := range w.pods {
		p := &w.pods[i]
		if p.uid != 0 && p.active && p.key == sliceKey {
			if halves++; !half || !p.half || halves > 1 {
				return false
			}
		}
		if p.uid == 0 {
			slot = i
		}
	}
	if slot < 0 {
		return false
	}
	w.uids++
	w.pods[slot] = pod{uid: w.uids, active: true, half: half, key: sliceKey, stage: selected, since: w.tick}
	return true
}

// claimed returns the slice's key if it is allocated to a claim, prepared or not.
func (w *world) claimed() mask {
	for i := range w.pods {
		if p := &w.pods[i]; p.uid != 0 && p.active && p.key == sliceKey {
			return bit(sliceKey)
		}
	}
	return 0
}

// claimOf returns the claim of a pod.
func claimOf(p *pod) Claim {
	uid := uidNames[p.uid]
	c := Claim{UID: uid, Name: uid, Pods: []string{uid}, Devices: []string{gpu0}}
	if p.half {
		c.Amounts = map[string]Amount{gpu0: {Cores: WholeCores / 2}}
	}
	return c
}

// prepare is NodePrepareResources. The kubelet retries a refused call.
func (w *world) prepare(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || p.key != sliceKey || p.stage != selected || w.gate.Prepare(claimOf(p)) != nil {
		return false
	}
	p.stage, p.since, p.part = admitted, w.tick, w.parts[sliceKey]
	if !p.half {
		p.part = 0
	}
	p.holds = p.active
	w.checkAllocated("prepare")
	w.free(slot)
	return true
}

// unprepare is NodeUnprepareResources for a claim without an active pod. The kubelet's reconcile loop calls it for a
// force-deleted pod although its container may still run.
func (w *world) unprepare() bool {
	for _, c := range w.gate.Claims() {
		if p := w.podOf(c); p == nil || !p.active {
			w.gate.Unprepare(c.UID)
			return true
		}
	}
	return false
}

// unprepareStopped is NodeUnprepareResources for the claims of pods that have ended.
func (w *world) unprepareStopped() {
	for _, c := range w.gate.Claims() {
		if p := w.podOf(c); p == nil || !p.active && p.container == absent {
			w.gate.Unprepare(c.UID)
		}
	}
}

func (w *world) podOf(c Claim) *pod {
	for i := range w.pods {
		if p := &w.pods[i]; p.uid != 0 && uidNames[p.uid] == c.UID {
			return p
		}
	}
	return nil
}

// restoreClaims restores the prepared claims at the start of an agent, which reads them from its own records or, if
// these are lost, from those of the kubelet, which lack the amounts.
func (w *world) restoreClaims(claims []Claim, recorded bool) {
	for _, c := range claims {
		if !recorded {
			c.Amounts = nil
		}
		w.gate.Restore(c)
	}
}
