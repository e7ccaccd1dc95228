package allocator

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"
)

// ErrHeld means that a device is not available yet, for example because another claim or pod may still use it.
var ErrHeld = errors.New("device not available yet")

// MaxClaimPods bounds the pods that are kept of a claim. The pods of a claim in continuous use add up.
const MaxClaimPods = 1024

// Claim is a ResourceClaim with devices of this node.
type Claim struct {
	UID             string
	Namespace, Name string
	Pods            []string // UIDs of its pods, as far as they are known; see Gate.Join
	PodNames        string   // of its first pods, for messages; empty if unknown

	Devices []string          // IDs in the slice; a shared device can occur several times
	Amounts map[string]Amount // of shared devices, by ID; a claim without an amount has all of the device
	Admin   []string          // IDs that it monitors through admin access, regardless of other holders

	// Parts are the parts of Devices, in the same order, and only set in an Observation. They are used only if the ledger
	// lacks the entry. The zero Part is an unknown one.
	Parts []Part
}

// String returns the names of the claim and of its first pods.
func (c Claim) String() string {
	name := c.Namespace + "/" + c.Name
	if c.PodNames == "" {
		return name
	}
	return name + " of pod " + c.PodNames
}

// distinct returns the IDs of Devices, each once and sorted.
func (c Claim) distinct() []string { return distinct(c.Devices) }

func distinct(ids []string) []string { return slices.Compact(slices.Sorted(slices.Values(ids))) }

// SameDevices reports whether two claims hold and monitor the same devices.
func (c Claim) SameDevices(d Claim) bool {
	return slices.Equal(c.distinct(), d.distinct()) && slices.Equal(distinct(c.Admin), distinct(d.Admin))
}

// monitors reports whether a pod may have devices of other holders through the claim's admin access.
func (c Claim) monitors(pod string) bool { return len(c.Admin) > 0 && slices.Contains(c.Pods, pod) }

// Prepare grants all devices of a claim, or none. For a claim that is already prepared it succeeds, adds the pods, and
// keeps the latest MaxClaimPods of them. A retry after Changed can succeed if the error wraps ErrHeld and neither
// ErrUnknown nor ErrUnhealthy. The error describes up to 10 problems.
func (g *Gate) Prepare(c Claim) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if prepared, found := g.claims[c.UID]; found {
		prepared.Pods = withPods(prepared.Pods, c.Pods)
		if prepared.Amounts == nil {
			prepared.Amounts = c.Amounts // if an earlier agent prepared it and its record is lost
		}
		g.claims[c.UID] = prepared
		return nil
	}
	var errs problems
	for _, id := range c.distinct() {
		g.checkClaimable(c, id, &errs)
	}
	if err := errs.err(); err != nil {
		if errors.Is(err, ErrUnknown) { // the claim cannot be prepared, so it needs none of its devices
			for _, id := range c.distinct() {
				delete(g.requested, id)
			}
		}
		return err
	}
	g.claims[c.UID] = c
	for _, id := range c.distinct() {
		delete(g.requested, id)
		g.seq++
		d := g.entries[Key{SliceOutlet, id}]
		d.grant.Seq, d.grant.Last, d.grant.Pods = g.seq, g.now(), c.Pods
	}
	return nil
}

// withPods returns the UIDs of added pods followed by those of earlier pods, each once, and at most MaxClaimPods.
func withPods(earlier, added []string) (all []string) {
	known := map[string]bool{}
	for _, uid := range slices.Concat(added, earlier) {
		if !known[uid] && len(all) < MaxClaimPods {
			known[uid], all = true, append(all, uid)
		}
	}
	return all
}

// checkClaimable adds a problem to errs if a device cannot be granted to a claim that is not prepared.
func (g *Gate) checkClaimable(c Claim, id string, errs *problems) {
	d := g.entries[Key{SliceOutlet, id}]
	requested := (d == nil || !d.open) && g.request(c, id)
	if d == nil && requested {
		errs.add(ErrHeld, "%s was allocated after it had left the ResourceSlices; it returns to them once no pod holds it", id)
		return
	}
	if d == nil {
		errs.add(ErrUnknown, "%s is not in the ResourceSlices of this node; if this persists, delete the pod to get another device", quoteID(id))
		return
	}
	if !d.open {
		refusal := d.entry.refusal()
		if requested && d.entry.Fault.None() { // it may be closed, but still in the ledger
			refusal = ErrHeld
		}
		errs.add(refusal, "%s: %s", id, cmp.Or(d.entry.Message(), "not advertised yet"))
		return
	}
	if d.entry.shared() {
		g.checkShare(c, d, errs)
		return
	}
	for _, other := range g.claims {
		if slices.Contains(other.Devices, id) {
			errs.add(ErrHeld, "%s is prepared for claim %s", id, other)
			return
		}
	}
	if !d.unused() {
		errs.add(ErrHeld, "%s: containers of an earlier claim may still use it", id)
	}
}

// unused reports whether no container of a claim that was unprepared may use a device.
func (d *gateEntry) unused() bool { return !d.entry.dirty && d.grant.Seq == d.entry.seq }

// Unused reports whether no claim other than the one with a UID has a device of the slice, and no container of an earlier
// claim may use it.
func (g *Gate) Unused(id, except string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.claims {
		if c.UID != except && slices.Contains(c.Devices, id) {
			return false
		}
	}
	d := g.entries[Key{SliceOutlet, id}]
	_, prepared := g.claims[except]
	return d == nil || (prepared || d.unused()) && len(d.entry.ended) == 0 && len(d.unobserved()) == 0
}

// checkShare adds a problem to errs if the free capacity of a shared device does not suffice for a claim.
func (g *Gate) checkShare(c Claim, d *gateEntry, errs *problems) {
	id, capacity := d.entry.ID, d.entry.Capacity
	wanted := c.amount(id, capacity)
	if !wanted.within(capacity) {
		errs.add(ErrUnhealthy, "%s: the claim has %s of it, but its capacity is %s", id, wanted, capacity)
		return
	}
	total := wanted
	var holders []string
	for _, other := range g.claims {
		if slices.Contains(other.Devices, id) {
			total = total.Add(other.amount(id, capacity))
			holders = append(holders, other.String())
		}
	}
	prepared := total
	for _, ended := range slices.Concat(d.entry.ended, d.unobserved()) {
		total = total.Add(ended.Amount.of(capacity))
	}
	switch {
	case total.within(capacity):
	case prepared.within(capacity):
		errs.add(ErrHeld, "%s: containers of an earlier claim may still use it", id)
	default:
		slices.Sort(holders)
		errs.add(ErrHeld, "%s: the claim has %s of %s, but the device is prepared for claims %s", id, wanted, capacity, strings.Join(holders, ", "))
	}
}

// MemoryLimits returns the memory limits that a pod gets from its prepared claims, in bytes by UUID of the GPU. It
// omits GPUs that a claim has to itself or that are shared without limits. A share of a GPU whose sharing is unknown,
// because the agent lost its state, is limited.
func (g *Gate) MemoryLimits(pod string) map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	limits := map[string]uint64{}
	for _, c := range g.claims {
		if !slices.Contains(c.Pods, pod) {
			continue
		}
		for id, amount := range c.Amounts {
			if amount.Partial() && g.limitable(id) {
				limits[id] += amount.Memory
			}
		}
	}
	return limits
}

// limitable reports whether the memory of the shares of a device has to be limited. Shares of MIG devices are not
// limited, so MemoryLimits returns only UUIDs of GPUs.
func (g *Gate) limitable(id string) bool {
	d := g.entries[Key{SliceOutlet, id}]
	return d == nil || d.entry.Part.Share.Class != TimeSliced && d.entry.Part.Extent != ExtentMIG
}

// HeldByClaims returns the sum of the claims' amounts of each device, by ID; the zero Amount stands for the whole
// device.
func HeldByClaims(claims []Claim) map[string]Amount {
	held := map[string]Amount{}
	for _, c := range claims {
		for _, id := range c.distinct() {
			before, isHeld := held[id]
			a := c.amount(id, Amount{})
			if a == (Amount{}) || isHeld && before == (Amount{}) {
				held[id] = Amount{}
				continue
			}
			held[id] = before.Add(a)
		}
	}
	return held
}

// amount returns the claim's amount of a shared device with a capacity.
func (c Claim) amount(id string, capacity Amount) Amount { return c.Amounts[id].of(capacity) }

// refusal returns the sentinel for the refusal of an entry that the gate does not grant: ErrHeld if the entry can
// become available, once others are released or its CDI device is verified, else ErrUnhealthy. An entry that drains for
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

// Claim returns a prepared claim.
func (g *Gate) Claim(uid string) (c Claim, prepared bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, prepared = g.claims[uid]
	return c, prepared
}

// Join adds pods to the prepared claims, by UID: the kubelet does not call Prepare for a pod that joins a prepared claim.
// began is a time before the pods were read from its records.
func (g *Gate) Join(pods map[string][]string, began time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, c := range g.claims {
		c.Pods = withPods(c.Pods, pods[uid])
		g.claims[uid] = c
	}
	if now := g.now(); !now.Before(g.reads[0].done.Add(settle)) {
		g.reads = [2]podsRead{{began, now}, g.reads[0]}
	}
}

// Unprepare ends the use of devices by a claim. Claims get them once no container uses them any more.
func (g *Gate) Unprepare(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, now := g.claims[uid], g.now()
	ended := EndedClaim{At: now, Pods: c.Pods, Joins: Joins{From: g.reads[1].began, Until: now}}
	if !g.reads[0].done.Add(settle).After(now) {
		ended.Joins.From = g.reads[0].began
	}
	for _, id := range c.distinct() {
		if d := g.entries[Key{SliceOutlet, id}]; d != nil {
			d.grant.LastEnded++
			ended.Number, ended.Amount = d.grant.LastEnded, c.Amounts[id]
			d.grant.Ended = append(slices.Clip(d.grant.Ended), ended)
		}
	}
	delete(g.claims, uid)
}

// Cancel ends a claim for which Prepare was called, but whose containers have never had its devices.
func (g *Gate) Cancel(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.claims, uid)
}

// unobserved returns the ended claims that the latest ledger does not contain.
func (d *gateEntry) unobserved() (ended []EndedClaim) {
	for _, c := range d.grant.Ended {
		if c.Number > d.entry.lastEnded {
			ended = append(ended, c)
		}
	}
	return ended
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
