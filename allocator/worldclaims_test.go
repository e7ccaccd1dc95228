package allocator

import "slices"

// The actions of the scheduler, of the kubelet's DRA manager, and of the agent for its ResourceSlice. Several pods can
// have the same claim, if it is for the whole GPU. A claim has the UID of its first pod.

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

// request is what a claim gets: a device of the slice, or half of the GPU.
type request struct {
	key  uint8
	half bool
}

var requests = [...]request{{sliceKey, false}, {sliceKey, true}, {firstMIGKey, false}, {firstMIGKey + 1, false}}

// schedule allocates a device to the claim of a new pod.
func (w *world) schedule(r request) bool {
	return w.allocatable(r) && w.reserve(pod{claim: w.uids + 1, key: r.key, half: r.half})
}

// allocatable reports whether the scheduler can allocate a device. The claim of a pod that has ended, or was
// force-deleted, is deallocated. The scheduler does not track that a MIG device is a part of the GPU.
func (w *world) allocatable(r request) bool {
	halves := 0
	for i := range w.pods {
		if p := &w.pods[i]; p.uid != 0 && p.active && p.key == r.key {
			if halves++; !r.half || !p.half || halves > 1 {
				return false
			}
		}
	}
	return w.scheduled.listed&bit(r.key) != 0 && (!r.half || w.scheduled.shared)
}

// reserve reserves the claim of a new pod for it.
func (w *world) reserve(p pod) bool {
	slot := -1
	for i := range w.pods {
		if w.pods[i].uid == 0 {
			slot = i
		}
	}
	if slot < 0 || w.uids == 255 {
		return false
	}
	w.uids++
	p.uid, p.active, p.stage, p.since = w.uids, true, selected, w.tick
	w.pods[slot] = p
	return true
}

// join reserves the claim of a pod for another pod. If no active pod has the claim, the scheduler allocates the same
// device to it again; package dra handles another one. A claim for a part of the GPU is for one pod at a time.
func (w *world) join(slot uint8) bool {
	p := w.pods[slot]
	if p.claim == 0 {
		return false
	}
	if w.reserved(p.claim) {
		return !p.half && w.reserve(pod{claim: p.claim, key: p.key})
	}
	return w.allocatable(request{p.key, p.half}) && w.reserve(pod{claim: p.claim, key: p.key, half: p.half})
}

// reserved reports whether an active pod has a claim.
func (w *world) reserved(claim uint8) bool {
	return slices.ContainsFunc(w.pods[:], func(p pod) bool { return p.active && p.claim == claim })
}

// claimed returns the slice's keys that are allocated to claims, prepared or not.
func (w *world) claimed() (allocated mask) {
	for i := range w.pods {
		if p := &w.pods[i]; p.uid != 0 && p.active && sliced(p.key) {
			allocated |= bit(p.key)
		}
	}
	return allocated
}

// claimOf returns the claim of a pod, with the pods that it is reserved for.
func (w *world) claimOf(p *pod) Claim {
	uid := uidNames[p.claim]
	c := Claim{UID: uid, Name: uid, Devices: []string{keys[p.key].ID}}
	for i := range w.pods {
		if q := &w.pods[i]; q == p || q.active && q.claim == p.claim {
			c.Pods = append(c.Pods, uidNames[q.uid])
		}
	}
	if p.half {
		c.Amounts = map[string]Amount{gpu0: {Cores: WholeCores / 2}}
	}
	return c
}

// prepare prepares the claim of a pod in the kubelet. It calls NodePrepareResources, and again if it is refused, unless
// the claim is prepared already.
func (w *world) prepare(slot uint8) bool {
	p := &w.pods[slot]
	if p.uid == 0 || !sliced(p.key) || p.stage != selected {
		return false
	}
	p.joined = w.referencing(p.claim, referenced) != nil
	switch joined := w.referencing(p.claim, prepared); {
	case joined != nil:
		p.part = joined.part
	case w.gate.Prepare(w.claimOf(p)) != nil:
		if !p.joined {
			return false
		}
		w.fail("the claim of pod %d is refused although it is prepared", p.uid)
	case p.half || p.key != sliceKey:
		p.part = w.parts[p.key]
	}
	p.stage, p.since, p.sandbox, p.reference = admitted, w.tick, w.tick, prepared
	p.holds = p.active
	w.checkAllocated("prepare")
	w.checkOutlived(p)
	return true
}

// checkOutlived fails if a claim for the whole GPU is prepared again for a pod while an earlier pod of the claim holds
// the GPU. checkAllocated counts the pods of such a claim once, but those of a claim for a part separately.
func (w *world) checkOutlived(p *pod) {
	for i := range w.pods {
		if q := &w.pods[i]; !p.half && !p.joined && q.holds && q.former == p.claim {
			w.fail("the claim of pod %d is prepared again while pod %d holds the GPU", p.uid, q.uid)
		}
	}
}

// referencing returns a pod in the kubelet's record of a claim, in the given state or a later one; nil if there is
// none.
func (w *world) referencing(claim uint8, state uint8) *pod {
	for i := range w.pods {
		if p := &w.pods[i]; p.claim == claim && p.reference >= state {
			return p
		}
	}
	return nil
}

// unprepare removes a pod that is not active from the kubelet's record of its claim. With the last pod, it calls
// NodeUnprepareResources. The kubelet's reconcile loop does this for a force-deleted pod although its container may
// still run.
func (w *world) unprepare(slot uint8) bool {
	p := &w.pods[slot]
	if p.active || p.reference == unreferenced {
		return false
	}
	p.reference, p.since = unreferenced, w.tick
	if claim := p.claim; w.referencing(claim, referenced) == nil {
		w.gate.Unprepare(uidNames[claim])
		w.outlive(claim)
	}
	return w.free(slot)
}

// outlive ends the claim of the pods that it was prepared for. A pod that is yet to be prepared keeps it.
func (w *world) outlive(claim uint8) {
	for i := range w.pods {
		if p := &w.pods[i]; p.claim == claim && p.stage != selected {
			p.claim, p.former = 0, claim
		}
	}
}

// references returns the kubelet's records of claims.
func (w *world) references() (all references) {
	for i := range w.pods {
		if p := &w.pods[i]; p.reference != unreferenced {
			all[i] = record{p.uid, p.claim}
		}
	}
	return all
}

// podsOf returns the pods of a claim.
func (all *references) podsOf(uid string) (pods []string) {
	for _, r := range all {
		if r.uid != 0 && uidNames[r.key] == uid {
			pods = append(pods, uidNames[r.uid])
		}
	}
	return pods
}

// isJoined reports whether a pod joined its claim.
func (w *world) isJoined(uid string) bool {
	return slices.ContainsFunc(w.pods[:], func(p pod) bool { return p.joined && uidNames[p.uid] == uid })
}

// restoreClaims restores the prepared claims at the start of an agent, which reads them from its own records or, if
// these are lost, from those of the kubelet, which lack the amounts. Its records lack the pods that joined a claim.
func (w *world) restoreClaims(claims []Claim, recorded bool) {
	kubelet := w.references()
	for _, c := range claims {
		if recorded {
			c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), w.isJoined)
		} else {
			c = Claim{UID: c.UID, Name: c.Name, Pods: kubelet.podsOf(c.UID), Devices: c.Devices}
		}
		w.gate.Restore(c)
	}
}
