package health

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Health is the verdict on one GPU.
type Health struct {
	// Reason is why the GPU cannot be given out, empty when it can.
	Reason string
	// Category is the worst cause in one word, of few: what metrics count by.
	Category string
	// Heals is what would make it healthy again.
	Heals string
	// Since is when it became unhealthy.
	Since time.Time
}

// Tracker follows the health of a node's GPUs, by UUID. A GPU that it has not
// heard of is healthy. Not for concurrent use.
type Tracker struct {
	Policy Policy

	// Quiet is how long a GPU must show nothing bad, with probes that pass,
	// until a transient fault is over.
	Quiet time.Duration

	gpus map[string]*state
}

// state is what is known against one GPU.
type state struct {
	since     time.Time // of being unhealthy; zero when healthy
	transient cause     // cleared by a quiet period
	reset     cause     // cleared by a reset, or by the recovery action
	fatal     cause     // cleared by the return of the GPU
	broken    cause     // as long as the probes say so

	lastBad     time.Time // when something transient was last seen
	unreachable bool      // it was away since the fatal cause
	uncorrected uint64    // as last probed
	asked       bool      // the driver has required a recovery action since the reset cause
	action      *Recovery // the latest one; nil where the driver does not report it
	restored    bool      // the reset cause is by Restore: the GPU may have been reset while no agent ran
}

// cause is why a GPU is unhealthy; the zero cause is none.
type cause struct{ category, reason, heals string }

// The categories of causes besides the XIDs, which are "xid_79" and so on.
// docs/health.md tells them.
const (
	unresponsive   = "unresponsive"
	gone           = "gone"
	eccErrors      = "ecc"
	repairPending  = "repair_pending"
	rowsFailed     = "rows_failed"
	recoveryNeeded = "recovery_needed"
)

const (
	healsByReset  = "a GPU reset (nvidia-smi --gpu-reset) or a reboot of the node"
	healsByRepair = "an exchange of the GPU"
	healsByReturn = "the GPU's return: a reboot of the node, or a look at its power and its slot"
)

// Event takes in an XID, and returns its class.
func (t *Tracker) Event(uuid string, xid int, at time.Time) Class {
	g := t.of(uuid)
	class := t.Policy.Class(xid)
	category := fmt.Sprintf("xid_%d", xid)
	reason := fmt.Sprintf("XID %d", xid)
	if x, known := find(xid); known {
		reason += ": " + x.Text
	}
	switch class {
	case Transient:
		g.transient, g.lastBad = cause{category, reason, t.healsByQuiet()}, at
	case Reset:
		g.reset, g.asked, g.restored = cause{category, reason, healsByReset}, false, false
		g.lastBad = at
	case Fatal:
		g.fatal, g.unreachable = cause{category, reason, healsByReturn}, xid == fellOffTheBus
	case Ignore, Application:
	}
	g.settle(at)
	return class
}

// Unresponsive records that a call about the GPU did not return, or ended the process that
// made it. That says nothing about whether the GPU was away: a fault that only its return
// clears stays.
func (t *Tracker) Unresponsive(uuid, reason string, at time.Time) {
	g := t.of(uuid)
	g.transient, g.lastBad = cause{unresponsive, reason, t.healsByQuiet()}, at
	g.settle(at)
}

// Probe records a probe of the GPU.
func (t *Tracker) Probe(uuid string, p Probe, at time.Time) {
	g := t.of(uuid)
	if p.Fault != "" {
		g.transient, g.lastBad = cause{unresponsive, p.Fault, t.healsByQuiet()}, at
		g.unreachable = true
		g.settle(at)
		return
	}
	if g.unreachable && g.fatal != (cause{}) {
		// It has been away, and is back.
		g.transient, g.lastBad = cause{g.fatal.category, g.fatal.reason, t.healsByQuiet()}, at
		g.fatal = cause{}
	}
	g.unreachable = false
	g.broken = cause{}
	if p.RowsFailed {
		g.broken = cause{rowsFailed, "a bad row of memory could not be replaced: no spare is left", healsByRepair}
	}
	g.judgeRecovery(p, at, t.Quiet)
	g.judgeErrors(p)
	if at.Sub(g.lastBad) >= t.Quiet {
		g.transient = cause{}
	}
	g.settle(at)
}

// judgeRecovery trusts the recovery action of drivers that report it. An XID comes before
// the action that it leads to: only one that stays none for the quiet period clears a fault
// for which none was required.
func (g *state) judgeRecovery(p Probe, at time.Time, quiet time.Duration) {
	g.action = p.Recovery
	quietly := at.Sub(g.lastBad) >= quiet
	switch {
	case p.Recovery == nil:
		if p.RepairPending && g.reset == (cause{}) {
			g.reset = cause{repairPending, "a page or row of memory waits to be replaced", healsByReset}
		} else if g.restored && g.uncorrected == 0 && !p.RepairPending && quietly {
			// GPUs are reset while no agent holds them, and nothing shows here that this one was.
			// A GPU that never recovers would be worse than one that reports the fault again.
			g.reset, g.restored = cause{}, false
		}
	case p.Recovery.required():
		if g.reset == (cause{}) {
			g.reset = cause{recoveryNeeded, "the driver requires " + p.Recovery.String(), ""}
		}
		g.asked = true
	case g.asked, quietly:
		g.reset, g.asked = cause{}, false
	}
}

// judgeErrors watches the counter of uncorrected errors. It starts anew at a
// reset, so a lower value shows one. Where the driver tells what a GPU needs,
// a higher value says no more than that.
func (g *state) judgeErrors(p Probe) {
	if p.Uncorrected == nil {
		return
	}
	switch now := *p.Uncorrected; {
	case now < g.uncorrected:
		g.reset, g.asked = cause{}, false
	case now > g.uncorrected && p.Recovery == nil && g.reset == (cause{}):
		g.reset = cause{eccErrors, fmt.Sprintf("memory has had %d errors that cannot be corrected", now), healsByReset}
	}
	g.uncorrected = *p.Uncorrected
}

// Gone takes in that the driver no longer lists the GPU, or that it is lost.
// The GPU's return is as good as a reset.
func (t *Tracker) Gone(uuid, reason string, at time.Time) {
	g := t.of(uuid)
	*g = state{since: g.since, fatal: cause{gone, reason, healsByReturn}, unreachable: true}
	g.settle(at)
}

// Returned takes in that a GPU that was Gone is listed again and answers.
func (t *Tracker) Returned(uuid string, at time.Time) {
	g := t.of(uuid)
	*g = state{lastBad: at}
	g.settle(at)
}

// Forget drops all that is known of the GPU.
func (t *Tracker) Forget(uuid string) { delete(t.gpus, uuid) }

// Health returns the verdict on the GPU.
func (t *Tracker) Health(uuid string) Health {
	g, known := t.gpus[uuid]
	if !known || g.since.IsZero() {
		return Health{}
	}
	var reasons []string
	causes := t.causes(g)
	for _, c := range causes {
		reasons = append(reasons, c.reason)
	}
	worst := causes[0]
	return Health{Reason: strings.Join(reasons, "; "), Category: worst.category, Heals: worst.heals, Since: g.since}
}

// causes are those that hold, the worst first.
func (t *Tracker) causes(g *state) []cause {
	reset := g.reset
	switch {
	case reset == (cause{}) || g.action == nil:
	case g.action.required():
		reset.heals = g.action.String()
	default:
		reset.heals = fmt.Sprintf("%s in which the driver requires no recovery action", t.Quiet)
	}
	return slices.DeleteFunc([]cause{g.fatal, g.broken, reset, g.transient}, func(c cause) bool { return c == cause{} })
}

// settle keeps since in step with the causes.
func (g *state) settle(at time.Time) {
	switch healthy := g.fatal == (cause{}) && g.broken == (cause{}) && g.reset == (cause{}) && g.transient == (cause{}); {
	case healthy:
		g.since = time.Time{}
	case g.since.IsZero():
		g.since = at
	}
}

func (t *Tracker) of(uuid string) *state {
	if t.gpus == nil {
		t.gpus = map[string]*state{}
	}
	if t.gpus[uuid] == nil {
		t.gpus[uuid] = &state{}
	}
	return t.gpus[uuid]
}

func (t *Tracker) healsByQuiet() string { return fmt.Sprintf("%s without a further fault", t.Quiet) }
