package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Tracker tracks the health of a node's GPUs and MIG devices, by UUID. A GPU without inputs is healthy. A Tracker is
// not safe for concurrent use.
type Tracker struct {
	Policy Policy

	// Quiet is the quiet period: the time without faults and with successful probes after which a transient fault is
	// cleared.
	Quiet time.Duration

	gpus map[string]*state
}

// state is the state of one GPU or MIG device.
type state struct {
	since        time.Time // when the GPU became unhealthy; zero if healthy
	unresponsive gpu.Fault // from a failed driver call; cleared by a quiet period
	transient    gpu.Fault // from an XID or the return of the GPU; cleared by a quiet period
	reset        gpu.Fault // cleared by a reset, or when the driver requires no recovery action
	fatal        gpu.Fault // cleared by the return of the GPU
	broken       gpu.Fault // set and cleared by probes

	lastFault      time.Time // start of the quiet period: the last failed call, transient fault, reset XID or return of the GPU
	unreachable    bool      // the GPU has been unreachable since the fatal fault
	uncorrected    uint64    // uncorrectable ECC errors, as last probed
	actionRequired bool      // the driver has required a recovery action since the reset fault
	action         *Recovery // as last probed; nil if not probed yet or not supported
	restored       bool      // the reset fault was restored: the GPU may have been reset while no agent ran, or while it was unreadable
}

const (
	remedyReset   = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node"
	remedyReplace = "replace the GPU"
)

// Event records an XID and returns its class. worse reports whether the GPU had no XID of this class or a more severe one.
func (t *Tracker) Event(uuid string, xid int, at time.Time) (class Class, worse bool) {
	g := t.of(uuid)
	class = t.Policy.Class(xid)
	fault := gpu.Fault{Code: gpu.XIDFault(xid), Message: fmt.Sprintf("XID %d", xid)}
	if x, known := find(xid); known {
		fault.Message += ": " + x.Text
	}
	switch class {
	case Transient:
		worse = g.transient.None() && g.reset.None() && g.fatal.None()
		g.transient, g.lastFault = t.untilQuiet(fault), at
	case Reset:
		worse = g.reset.None() && g.fatal.None()
		fault.Remedy = remedyReset
		g.reset, g.actionRequired, g.restored = fault, false, false
		g.lastFault = at
	case Fatal:
		worse = g.fatal.None()
		fault.Remedy = gpu.RemedyReboot
		g.fatal, g.unreachable = fault, xid == fellOffTheBus
	case Ignore, Application:
	}
	g.updateSince(at)
	return class, worse
}

// Unresponsive records that a call about the GPU hung or crashed the worker. Unlike a failed probe this does not imply
// that the GPU was unreachable, so a later response does not clear a fatal fault.
func (t *Tracker) Unresponsive(uuid string, fault gpu.Fault, at time.Time) {
	g := t.of(uuid)
	g.unresponsive, g.lastFault = t.untilQuiet(fault), at
	g.updateSince(at)
}

// Probe records the result of a probe.
func (t *Tracker) Probe(uuid string, p Probe, at time.Time) {
	g := t.of(uuid)
	if p.Failed != "" {
		g.unresponsive, g.lastFault = t.untilQuiet(gpu.Fault{Code: gpu.FaultUnresponsive, Message: p.Failed}), at
		g.unreachable = true
		g.updateSince(at)
		return
	}
	if g.unreachable && !g.fatal.None() {
		// The GPU has returned.
		g.transient, g.lastFault = t.untilQuiet(g.fatal), at
		g.fatal = gpu.Fault{}
	}
	g.unreachable = false
	g.broken = gpu.Fault{}
	if p.RowsFailed {
		g.broken = gpu.Fault{Code: gpu.FaultRowsFailed, Message: "row remapping failed: no spare rows left", Remedy: remedyReplace}
	}
	g.updateErrors(p) // first, because a reset may leave a recovery action or a repair pending
	g.updateRecovery(p, at, t.Quiet)
	if at.Sub(g.lastFault) >= t.Quiet {
		g.unresponsive, g.transient = gpu.Fault{}, gpu.Fault{}
	}
	g.updateSince(at)
}

// updateRecovery updates the reset fault from the recovery action, or from pending repairs if the driver does not
// report the action. The driver sets the action some time after the XID, so if it has required none since the fault,
// the fault is cleared only after a quiet period.
func (g *state) updateRecovery(p Probe, at time.Time, quietPeriod time.Duration) {
	g.action = p.Recovery
	quiet := at.Sub(g.lastFault) >= quietPeriod
	switch {
	case p.Recovery == nil:
		if !p.RepairPending && g.reset.Code == gpu.FaultRepairPending {
			g.reset = gpu.Fault{} // a reset has applied the repair
		}
		if p.RepairPending && g.reset.None() {
			g.reset = gpu.Fault{Code: gpu.FaultRepairPending, Message: "page retirement or row remapping is pending", Remedy: remedyReset}
		} else if g.restored && g.uncorrected == 0 && !p.RepairPending && quiet {
			// The GPU may have been reset while no agent ran, which is not detectable here. A GPU that never recovers
			// is worse than one that raises the fault again.
			g.reset, g.restored = gpu.Fault{}, false
		}
	case p.Recovery.required():
		if g.reset.None() {
			g.reset = gpu.Fault{Code: gpu.FaultRecoveryNeeded, Message: "the driver requires " + p.Recovery.String()}
		}
		g.actionRequired = true
	case g.actionRequired, quiet:
		g.reset, g.actionRequired = gpu.Fault{}, false
	}
}

// updateErrors updates the reset fault from the number of uncorrectable ECC errors. A reset clears the counter, so a
// lower value indicates one. A higher value is a fault only if the driver does not report the recovery action.
func (g *state) updateErrors(p Probe) {
	if p.Uncorrected == nil {
		return
	}
	switch now := *p.Uncorrected; {
	case now < g.uncorrected:
		g.reset, g.actionRequired = gpu.Fault{}, false
	case now > g.uncorrected && p.Recovery == nil && g.reset.None():
		g.reset = gpu.Fault{Code: gpu.FaultECC, Message: fmt.Sprintf("%d uncorrectable ECC errors", now), Remedy: remedyReset}
	}
	g.uncorrected = *p.Uncorrected
}

// Gone records that the GPU is missing from the inventory; fault is the reason. It clears all other faults, because the
// return of the GPU implies a reset. If the GPU is unreadable, perhaps for a moment, it keeps a reset fault, and a fatal
// XID that explains why.
func (t *Tracker) Gone(uuid string, fault gpu.Fault, at time.Time) {
	g := t.of(uuid)
	missing := state{since: g.since, fatal: fault, unreachable: true}
	if fault.Code == gpu.FaultUnreadable {
		missing.reset, missing.uncorrected = g.reset, g.uncorrected
		if _, isXID := xidOf(g.fatal.Code); isXID {
			missing.fatal, missing.unresponsive = g.fatal, fault
		}
	}
	*g = missing
	g.updateSince(at)
}

// Returned records that a GPU that was Gone is in the inventory again. It clears all faults, except a reset fault of a
// GPU that was only unreadable: it may have been reset meanwhile, or not.
func (t *Tracker) Returned(uuid string, at time.Time) {
	g := t.of(uuid)
	*g = state{since: g.since, lastFault: at, reset: g.reset, uncorrected: g.uncorrected, restored: !g.reset.None()}
	g.updateSince(at)
}

// Remove removes the state of the GPU.
func (t *Tracker) Remove(uuid string) { delete(t.gpus, uuid) }

// Fault returns the fault of the GPU: the code and remedy of the most severe fault condition, and the messages of all.
func (t *Tracker) Fault(uuid string) gpu.Fault {
	g, found := t.gpus[uuid]
	if !found || g.since.IsZero() {
		return gpu.Fault{}
	}
	faults := t.faults(g)
	var messages []string
	for _, f := range faults {
		messages = append(messages, f.Message)
	}
	worst := faults[0]
	worst.Message, worst.Since = strings.Join(messages, "; "), g.since
	return worst
}

// faults returns the current faults, the most severe first. The remedy of the reset fault depends on the latest
// recovery action.
func (t *Tracker) faults(g *state) []gpu.Fault {
	reset := g.reset
	switch {
	case reset.None() || g.action == nil:
	case g.action.required():
		reset.Remedy = "recovers after " + g.action.String()
	default:
		reset.Remedy = fmt.Sprintf("recovers when the driver has required no recovery action for %s", t.Quiet)
	}
	return slices.DeleteFunc([]gpu.Fault{g.fatal, g.broken, reset, g.unresponsive, g.transient}, gpu.Fault.None)
}

// updateSince sets since according to the faults.
func (g *state) updateSince(at time.Time) {
	switch healthy := g.fatal.None() && g.broken.None() && g.reset.None() && g.unresponsive.None() && g.transient.None(); {
	case healthy:
		g.since = time.Time{}
	case g.since.IsZero():
		g.since = at
	}
}

// of returns the state of a device, and creates it if there is none.
func (t *Tracker) of(uuid string) *state {
	if t.gpus == nil {
		t.gpus = map[string]*state{}
	}
	if t.gpus[uuid] == nil {
		t.gpus[uuid] = &state{}
	}
	return t.gpus[uuid]
}

// untilQuiet returns the fault with the remedy of a transient fault: a quiet period clears it.
func (t *Tracker) untilQuiet(fault gpu.Fault) gpu.Fault {
	fault.Remedy = fmt.Sprintf("recovers after %s without a further fault", t.Quiet)
	return fault
}
