package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

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
	transient gpu.Fault // cleared by a quiet period
	reset     gpu.Fault // cleared by a reset, or by the recovery action
	fatal     gpu.Fault // cleared by the return of the GPU
	broken    gpu.Fault // as long as the probes say so

	lastBad     time.Time // when something transient was last seen
	unreachable bool      // it was away since the fatal fault
	uncorrected uint64    // as last probed
	asked       bool      // the driver has required a recovery action since the reset fault
	action      *Recovery // the latest one; nil where the driver does not report it
	restored    bool      // the reset fault is by Restore: the GPU may have been reset while no agent ran
}

const (
	remedyReset  = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node"
	remedyRepair = "replace the GPU"
)

// Event takes in an XID, and returns its class.
func (t *Tracker) Event(uuid string, xid int, at time.Time) Class {
	g := t.of(uuid)
	class := t.Policy.Class(xid)
	fault := gpu.Fault{Code: gpu.XIDFault(xid), Message: fmt.Sprintf("XID %d", xid)}
	if x, known := find(xid); known {
		fault.Message += ": " + x.Text
	}
	switch class {
	case Transient:
		g.transient, g.lastBad = t.untilQuiet(fault), at
	case Reset:
		fault.Remedy = remedyReset
		g.reset, g.asked, g.restored = fault, false, false
		g.lastBad = at
	case Fatal:
		fault.Remedy = gpu.RemedyReturn
		g.fatal, g.unreachable = fault, xid == fellOffTheBus
	case Ignore, Application:
	}
	g.settle(at)
	return class
}

// Unresponsive records that a call about the GPU did not return, or ended the process that
// made it. That says nothing about whether the GPU was away: a fault that only its return
// clears stays.
func (t *Tracker) Unresponsive(uuid string, fault gpu.Fault, at time.Time) {
	g := t.of(uuid)
	g.transient, g.lastBad = t.untilQuiet(fault), at
	g.settle(at)
}

// Probe records a probe of the GPU.
func (t *Tracker) Probe(uuid string, p Probe, at time.Time) {
	g := t.of(uuid)
	if p.Failed != "" {
		g.transient, g.lastBad = t.untilQuiet(gpu.Fault{Code: gpu.FaultUnresponsive, Message: p.Failed}), at
		g.unreachable = true
		g.settle(at)
		return
	}
	if g.unreachable && !g.fatal.None() {
		// It has been away, and is back.
		g.transient, g.lastBad = t.untilQuiet(g.fatal), at
		g.fatal = gpu.Fault{}
	}
	g.unreachable = false
	g.broken = gpu.Fault{}
	if p.RowsFailed {
		g.broken = gpu.Fault{Code: gpu.FaultRowsFailed, Message: "a bad row of memory could not be replaced: no spare is left", Remedy: remedyRepair}
	}
	g.judgeRecovery(p, at, t.Quiet)
	g.judgeErrors(p)
	if at.Sub(g.lastBad) >= t.Quiet {
		g.transient = gpu.Fault{}
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
		if p.RepairPending && g.reset.None() {
			g.reset = gpu.Fault{Code: gpu.FaultRepairPending, Message: "a page or row of memory waits to be replaced", Remedy: remedyReset}
		} else if g.restored && g.uncorrected == 0 && !p.RepairPending && quietly {
			// GPUs are reset while no agent holds them, and nothing shows here that this one was.
			// A GPU that never recovers would be worse than one that reports the fault again.
			g.reset, g.restored = gpu.Fault{}, false
		}
	case p.Recovery.required():
		if g.reset.None() {
			g.reset = gpu.Fault{Code: gpu.FaultRecoveryNeeded, Message: "the driver requires " + p.Recovery.String()}
		}
		g.asked = true
	case g.asked, quietly:
		g.reset, g.asked = gpu.Fault{}, false
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
		g.reset, g.asked = gpu.Fault{}, false
	case now > g.uncorrected && p.Recovery == nil && g.reset.None():
		g.reset = gpu.Fault{Code: gpu.FaultECC, Message: fmt.Sprintf("memory has had %d errors that cannot be corrected", now), Remedy: remedyReset}
	}
	g.uncorrected = *p.Uncorrected
}

// Gone takes in that the driver no longer lists the GPU, or that it is lost.
// The GPU's return is as good as a reset.
func (t *Tracker) Gone(uuid string, fault gpu.Fault, at time.Time) {
	g := t.of(uuid)
	*g = state{since: g.since, fatal: fault, unreachable: true}
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

// Fault returns what is wrong with the GPU: the code and the remedy of the worst fault, and the
// messages of all.
func (t *Tracker) Fault(uuid string) gpu.Fault {
	g, known := t.gpus[uuid]
	if !known || g.since.IsZero() {
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

// faults are those that hold, the worst first.
func (t *Tracker) faults(g *state) []gpu.Fault {
	reset := g.reset
	switch {
	case reset.None() || g.action == nil:
	case g.action.required():
		reset.Remedy = "recovers after " + g.action.String()
	default:
		reset.Remedy = fmt.Sprintf("recovers after %s in which the driver requires no recovery action", t.Quiet)
	}
	return slices.DeleteFunc([]gpu.Fault{g.fatal, g.broken, reset, g.transient}, gpu.Fault.None)
}

// settle keeps since in step with the faults.
func (g *state) settle(at time.Time) {
	switch healthy := g.fatal.None() && g.broken.None() && g.reset.None() && g.transient.None(); {
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

// untilQuiet returns a fault as one that a quiet period clears.
func (t *Tracker) untilQuiet(fault gpu.Fault) gpu.Fault {
	fault.Remedy = fmt.Sprintf("recovers after %s without a further fault", t.Quiet)
	return fault
}
