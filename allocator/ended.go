package allocator

import (
	"slices"
	"time"
)

// EndedClaim is a claim that was unprepared. Its containers may still use its devices.
type EndedClaim struct {
	Number uint64 // counts the ended claims of an entry, from 1; 0 if it stands for unknown ones
	At     time.Time
	Amount Amount   // of a shared entry; the zero Amount stands for all of it
	Pods   []string // UIDs of its known pods
	Joins  Joins
}

// Joins bounds when the sandbox of an unknown pod of an ended claim was created, if the runtime may not list its container
// yet. The kubelet does not call the driver for a pod that joins a prepared claim, and may have removed a force-deleted pod
// from its records before the agent reads them.
type Joins struct {
	// From is when the last read of the records began that was complete a settle before Until. A pod that it missed either
	// joined the claim later, or had left it, so that its container was listed before Until. Zero if there was no such read.
	From  time.Time
	Until time.Time // when the claim ended
}

// visibleAt returns the time from which the runtime lists the containers of all pods that had joined the claim.
func (j Joins) visibleAt() time.Time { return j.Until.Add(settle) }

// joined reports whether one of the ready sandboxes may be that of a pod that is not known, and whose container the
// runtime may not list yet.
func (n *next) joined(j Joins) bool {
	if !n.o.Runtime.Requested.Before(j.visibleAt()) {
		return false
	}
	for _, created := range n.o.Runtime.Sandboxes {
		if !created.Before(j.From) && !created.After(j.Until) {
			return true
		}
	}
	return false
}

// claimEnded records that containers of a claim that is no longer prepared may still use the entry.
func (e *Entry) claimEnded(c EndedClaim) {
	e.joins = c.Joins
	e.addPods(c.Pods)
	if !e.shared() {
		return
	}
	ended := slices.Clone(e.ended)
	if c.Number == 0 { // replaces earlier unknown ones
		ended = slices.DeleteFunc(ended, func(earlier EndedClaim) bool { return earlier.Number == 0 })
	}
	e.ended = append(ended, c)
}

// cleanShares removes the ended claims of a shared entry whose containers have ended. Then only pods of other claims may
// use the entry.
func (n *next) cleanShares(e *Entry) {
	if !e.shared() {
		return
	}
	pods := n.claimPods(e.ID)
	var left []EndedClaim
	for _, c := range e.ended {
		if c.Number == 0 { // its pods include those of prepared claims
			c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(uid string) bool { return slices.Contains(pods, uid) })
		}
		if n.mayRun(e, c) {
			left = append(left, c)
		}
	}
	for _, c := range left {
		pods = append(pods, c.Pods...)
	}
	e.ended, e.pods = left, distinct(pods)
}

// mayRun reports whether a container of an ended claim may use a shared entry.
func (n *next) mayRun(e *Entry, c EndedClaim) bool {
	r := n.o.Runtime
	return r == nil || r.Absent || !r.Requested.After(c.At) || n.joined(c.Joins) || n.stray(e.Part) || slices.ContainsFunc(c.Pods, r.ready)
}

// claimPods returns the pods of the prepared claims that have a device of the slice.
func (n *next) claimPods(id string) (pods []string) {
	for _, c := range n.o.Claims {
		if slices.Contains(c.Devices, id) {
			pods = append(pods, c.Pods...)
		}
	}
	return pods
}
