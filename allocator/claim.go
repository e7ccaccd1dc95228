package allocator

import (
	"cmp"
	"errors"
	"slices"
)

// ErrHeld means that a device is not available yet, for example because another claim or pod may still use it.
var ErrHeld = errors.New("device not available yet")

// Claim is a ResourceClaim with devices of this node.
type Claim struct {
	UID  string
	Name string   // namespace/name, for messages
	Pods []string // UIDs of the pods that it is reserved for

	Devices []string // IDs in the slice
	Admin   []string // IDs that it uses for monitoring, regardless of other holders

	// Parts are those of Devices, and only set in an Observation. They are used only if the ledger lacks the entry; the
	// zero Part is unknown.
	Parts []Part
}

// monitors reports whether a pod may have devices of other holders.
func (c Claim) monitors(pod string) bool { return len(c.Admin) > 0 && slices.Contains(c.Pods, pod) }

// Prepare grants the devices of a claim, or none. For a claim that is prepared it succeeds and adds the pods. A retry
// after Changed can succeed if the error wraps ErrHeld and neither ErrUnknown nor ErrUnhealthy.
func (g *Gate) Prepare(c Claim) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if prepared, found := g.claims[c.UID]; found {
		pods := slices.Concat(prepared.Pods, c.Pods)
		slices.Sort(pods)
		prepared.Pods = slices.Compact(pods)
		g.claims[c.UID] = prepared
		return nil
	}
	var errs problems
	for _, id := range c.Devices {
		g.checkClaimable(id, &errs)
	}
	if err := errs.err(); err != nil {
		return err
	}
	g.claims[c.UID] = c
	for _, id := range c.Devices {
		g.seq++
		d := g.entries[Key{SliceOutlet, id}]
		d.grant.Seq, d.grant.Last, d.grant.Pods = g.seq, g.now(), c.Pods
	}
	return nil
}

// checkClaimable adds a problem to errs if a device cannot be granted to a claim that is not prepared.
func (g *Gate) checkClaimable(id string, errs *problems) {
	d := g.entries[Key{SliceOutlet, id}]
	if d == nil {
		errs.add(ErrUnknown, "%s is not in the ResourceSlices of this node", quoteID(id))
		return
	}
	if !d.open {
		errs.add(d.entry.refusal(), "%s: %s", id, cmp.Or(d.entry.Message(), "not advertised yet"))
		return
	}
	for _, other := range g.claims {
		if slices.Contains(other.Devices, id) {
			errs.add(ErrHeld, "%s is prepared for claim %s", id, other.Name)
			return
		}
	}
	if d.entry.dirty || d.grant.Seq != d.entry.seq {
		errs.add(ErrHeld, "%s: containers of an earlier claim may still use it", id)
	}
}

// refusal returns the kind of the error for a claim that requests an entry which the gate does not grant: ErrHeld if
// the entry can become available once others are released, or its CDI device is verified. One that drains for
// ReasonUnknown may still be wanted.
func (e *Entry) refusal() error {
	if !e.Fault.None() || e.State == StateDraining && e.Drain.Reason != ReasonUnknown {
		return ErrUnhealthy
	}
	return ErrHeld
}

// Restore adds a claim that an earlier agent prepared, whose containers may use its devices.
func (g *Gate) Restore(c Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claims[c.UID] = c
}

// Unprepare ends the use of devices by a claim. Other claims get them once no container uses them any more.
func (g *Gate) Unprepare(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.claims, uid)
}

// Changed returns a channel that is closed when a device may have become free.
func (g *Gate) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// Claims returns the prepared claims, by UID.
func (g *Gate) Claims() []Claim {
	g.mu.Lock()
	defer g.mu.Unlock()
	claims := make([]Claim, 0, len(g.claims))
	for _, c := range g.claims {
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b Claim) int { return cmp.Compare(a.UID, b.UID) })
	return claims
}
