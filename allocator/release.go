package allocator

import (
	"slices"
	"time"
)

// Steps to release a draining entry:
//
//  1. The kubelet no longer reports it as allocatable, or three settles have passed since it was withdrawn. This step
//     only prevents refusals, which reject pods.
//  2. An entry that was never granted, or not since it was last proved free, is free.
//  3. Otherwise, a checkpoint that was renamed into place at least two settles after the last grant must not contain
//     it. The kubelet records a grant within one settle, and a snapshot of its records is on disk within another. From
//     then on the kubelet starts no container with the entry. But a container may be starting or still running, because
//     the kubelet removes force-deleted pods from its records immediately.
//  4. The runtime, queried a settle later, must have no container with the part, and no ready sandbox of a pod that may
//     still start one.
//  5. The gate closes the entry, unless it has granted it meanwhile.
//
// For an entry of the slice, step 1 is that the API server has acknowledged slices without it, or that three settles
// have passed, and step 3 that no claim with it is prepared. If the config withdraws it, step 1 requires the
// acknowledgment and that it is allocated to no claim, however long that takes, because such a claim could no longer be
// prepared. In step 4 any later query suffices if the agent knows the pods of the claim. While there is a ready sandbox that
// may be that of an unknown pod, the query must be made a settle after the end of the claim (see Joins).
//
// After a start without state, the same steps prove that no ID without an entry is held (see bootstrap).

// observeCheckpoint records the earliest time at which the current checkpoint can have been renamed into place.
func (n *next) observeCheckpoint() {
	c := n.o.Checkpoint
	if c == nil || c.Requested.Before(n.checkpoint.requested) {
		return
	}
	if c.Version != n.checkpoint.version {
		n.checkpoint.version, n.checkpoint.landed = c.Version, n.checkpoint.requested
	}
	n.checkpoint.requested = c.Requested
}

// adopted returns the part of an entry of an earlier agent that is still wanted. before is its earlier part, as far as
// known. A MemoryLimited replica that a pod holds becomes PerhapsLimited, since the pod may have started without the limit.
// For a Ceiled one, before is PerhapsLimited if the CDI devices of its pod do not prove the ceiling.
func (n *next) adopted(k Key, before, wanted Part) Part {
	if wanted.Share.Class == MemoryLimited && n.held[k] || wanted.Share.Class.limited() && before.Share.Class == PerhapsLimited {
		wanted.Share.Class = PerhapsLimited
	}
	return wanted
}

// unknown returns entries for IDs that have none but are in the checkpoint or in claims. An earlier agent advertised
// them, so any grant was before the start. IDs that are still wanted get the part of the plan, because their former
// part is not recorded.
func (n *next) unknown() (adopted []Entry) {
	n.held = map[Key]bool{}
	adopt := func(k Key, part Part) {
		if e, found := n.Entry(k); found && (e.State != StateWaiting || !e.released.IsZero()) {
			return
		}
		if w, wanted := n.want(k); wanted {
			part = n.adopted(k, part, w.Part)
		}
		adopted = append(adopted, Entry{
			Key: k, Part: part, State: StateDraining, Drain: Drain{ReasonUnknown, n.now},
			withdrawn: n.start, dirty: true, last: n.start,
		})
	}
	for _, c := range n.o.Claims {
		for i, id := range c.Devices {
			adopt(Key{SliceOutlet, id}, c.Parts[i])
		}
	}
	if n.o.Checkpoint == nil {
		return adopted
	}
	for _, h := range n.o.Checkpoint.Held {
		n.held[h.Key] = true
		if h.Part.Share.Class == MemoryLimited {
			h.Part.Share.Class = PerhapsLimited
		}
		adopt(h.Key, h.Part)
	}
	if n.bootstrap.pending {
		for k := range n.o.Checkpoint.Registered {
			adopt(k, Part{})
		}
	}
	return adopted
}

// advertised reports whether the last list of the earlier agent, whose state is missing, contained an ID.
func (n *next) advertised(k Key) bool {
	return n.MayList() && n.o.Checkpoint != nil && n.o.Checkpoint.Registered[k]
}

// prove sets unrecorded of the dirty entries that the kubelet's records lack according to the checkpoint, and adds the
// pods of the others.
func (n *next) prove() {
	if n.o.Checkpoint == nil {
		return
	}
	for _, h := range n.o.Checkpoint.Held {
		i, _ := n.find(h.Key)
		if e := &n.entries[i]; e.dirty {
			e.addPods([]string{h.Pod})
		}
	}
	for i := range n.entries {
		e := &n.entries[i]
		if e.dirty && !e.sliced() && e.unrecorded.IsZero() && n.written(e.last) && !n.held[e.Key] {
			e.unrecorded = n.o.Checkpoint.Received
		}
	}
	n.proveBootstrap()
}

// proveUnprepared sets unrecorded of the dirty entries of the slice without a prepared claim. Entries with one become
// dirty, and it sets their pods.
func (n *next) proveUnprepared() {
	for i := range n.entries {
		n.entries[i].holders = nil
	}
	prepared := map[string]bool{}
	for _, c := range n.o.Claims {
		for _, id := range c.Devices {
			if i, found := n.find(Key{SliceOutlet, id}); found {
				prepared[id] = true
				e := &n.entries[i]
				e.dirty, e.unrecorded = true, time.Time{}
				if e.shared() {
					e.addPods(c.Pods)
				} else {
					e.holders = distinct(slices.Concat(e.holders, c.Pods))
				}
			}
		}
	}
	for i := range n.entries {
		e := &n.entries[i]
		if e.dirty && e.sliced() && e.unrecorded.IsZero() && !prepared[e.ID] {
			e.unrecorded = n.now
		}
	}
}

// addPods adds pods to those that hold the entry. It clones e.pods, because earlier ledgers share it.
func (e *Entry) addPods(uids []string) {
	for _, uid := range uids {
		if at, found := slices.BinarySearch(e.pods, uid); !found {
			e.pods = slices.Insert(slices.Clone(e.pods), at, uid)
		}
	}
}

// proveBootstrap ends the bootstrap if the evidence is complete.
func (n *next) proveBootstrap() {
	b := &n.bootstrap
	if !b.pending {
		return
	}
	if b.unrecorded.IsZero() && (b.fresh || n.written(n.start)) {
		b.unrecorded = n.o.Checkpoint.Received
	}
	b.pending = b.unrecorded.IsZero() || n.o.Runtime == nil || n.o.Runtime.Requested.Before(b.unrecorded.Add(n.margin()))
}

// margin is the time after a checkpoint within which containers with IDs that it lacks can still be created. A kubelet
// that started after the earlier agent ended creates none.
func (n *next) margin() time.Duration {
	if n.bootstrap.fresh {
		return 0
	}
	return settle
}

// written reports whether the checkpoint was written after the kubelet recorded all grants up to last.
func (n *next) written(last time.Time) bool {
	return !n.checkpoint.landed.Before(last.Add(2 * settle))
}

// listProcessed reports whether the kubelet has processed the list that withdrew an entry, or the API server has
// acknowledged the slices without it. A new stream proves nothing, because the kubelet has no healthy device before the
// first list.
func (n *next) listProcessed(e *Entry) bool {
	if e.sliced() {
		return !n.o.Pool.IDs[e.ID] && !n.o.Pool.Acknowledged.Before(e.withdrawn)
	}
	list, a := n.o.Lists[e.Outlet], n.o.Allocatable
	return a != nil && !a.IDs[e.Key] && !list.Sent.IsZero() &&
		!list.Sent.Before(e.withdrawn) && !a.Requested.Before(list.Sent) && !a.Requested.Before(list.Stream.Add(settle))
}

// deselected reports whether step 1 is complete.
func (n *next) deselected(e *Entry) bool {
	if n.moves(e) {
		return n.unallocated(e)
	}
	return !e.processed.IsZero() || !n.now.Before(e.withdrawn.Add(3*settle))
}

// moves reports whether the config withdraws an entry of the slice, so that its device may go to another outlet.
func (n *next) moves(e *Entry) bool { return e.sliced() && e.Drain.Reason == ReasonConfig }

// unallocated reports whether no claim has an entry of the slice, and none can get it any more.
func (n *next) unallocated(e *Entry) bool {
	a := n.o.Allocations
	return a != nil && !a.Absent && a.Claims[e.ID] == "" && !e.processed.IsZero() && !a.Requested.Before(e.unselected())
}

// unselected returns when schedulers have received the slices without the entry.
func (e *Entry) unselected() time.Time { return e.processed.Add(scheduleLag) }

// free reports whether steps 1 to 4 are complete.
func (n *next) free(e *Entry) bool { return n.deselected(e) && (!e.dirty || n.unheld(e)) }

// unheld reports whether steps 3 and 4 are complete.
func (n *next) unheld(e *Entry) bool {
	r := n.o.Runtime
	return !e.unrecorded.IsZero() && r != nil && !r.Requested.Before(e.queryFrom()) && !n.running(e)
}

// queryFrom returns the time from which a request to the runtime returns every container that could use an unrecorded
// entry, or the sandbox of its pod. For the slice, any request after unrecorded does, since a pod's sandbox exists
// before its claim is unprepared.
func (e *Entry) queryFrom() time.Time {
	if e.sliced() {
		return e.unrecorded.Add(1)
	}
	return e.unrecorded.Add(settle)
}

// clean marks an entry as not dirty if it is proved free, so that it can be granted, or later be released immediately.
func (n *next) clean(e *Entry) {
	n.cleanShares(e)
	draining := e.State == StateDraining && !e.sliced() // a claim can get a draining entry of the slice
	if !e.dirty || draining || n.o.Runtime == nil || n.o.Runtime.Absent {
		return
	}
	if n.unheld(e) {
		e.dirty, e.unrecorded, e.pods = false, time.Time{}, nil
	}
}

// running reports whether a container may use the part: one that the runtime lists, or one that a pod with a ready
// sandbox is about to start.
func (n *next) running(e *Entry) bool {
	r := n.o.Runtime
	return r == nil || n.stray(e.Part) || slices.ContainsFunc(e.pods, r.ready) || n.joined(e.joins)
}

// findStrays returns the parts of containers whose pod holds no matching entry, according to the checkpoint and the
// claims. The runtime cannot distinguish the shares of a device, so if all containers counted, the container of one
// share would hold all shares.
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

// explained reports whether the pod of a container holds an entry with its part, or may have devices of other holders.
func (n *next) explained(c Container) bool {
	if slices.ContainsFunc(n.o.Claims, func(claim Claim) bool { return claim.monitors(c.Pod) || n.hasDevice(claim, c) }) {
		return true
	}
	return n.o.Checkpoint != nil && slices.ContainsFunc(n.o.Checkpoint.Held, func(h Holding) bool {
		if h.Pod != c.Pod {
			return false
		}
		e, _ := n.Entry(h.Key)
		return e.Part.touches(c.Part)
	})
}

// hasDevice reports whether a claim of a container's pod has the container's part.
func (n *next) hasDevice(claim Claim, c Container) bool {
	return slices.Contains(claim.Pods, c.Pod) && slices.ContainsFunc(claim.Devices, func(id string) bool {
		e, _ := n.Entry(Key{SliceOutlet, id})
		return e.Part.Extent != ExtentUnknown && e.Part.touches(c.Part)
	})
}

// stray reports whether one of the strays touches the part. Before the first response of the runtime, any part may be
// in use.
func (n *next) stray(part Part) bool {
	return n.o.Runtime == nil || slices.ContainsFunc(n.strays, part.touches)
}
