package health

import (
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Saved is what has to outlive the agent of one GPU or MIG device: faults that were an event,
// which nothing repeats, and those that only a reset or the GPU's return clears. Others show
// again with the next probe.
type Saved struct {
	Since     time.Time `json:"since"`
	Transient gpu.Fault `json:"transient,omitzero"` // its quiet period begins anew
	Reset     gpu.Fault `json:"reset,omitzero"`
	Fatal     gpu.Fault `json:"fatal,omitzero"`

	// Unreachable: the GPU was away since the fatal fault, so an answer is its return.
	Unreachable bool `json:"unreachable,omitempty"`
	// Asked: the driver has required a recovery action since the reset fault.
	Asked bool `json:"asked,omitempty"`
	// Uncorrected is the latest count of memory errors: a lower one shows a reset.
	Uncorrected uint64 `json:"uncorrected,omitempty"`
}

// Save returns what has to outlive the agent, by UUID.
func (t *Tracker) Save() map[string]Saved {
	saved := map[string]Saved{}
	for uuid, g := range t.gpus {
		transient := g.transient
		if transient.Code == gpu.FaultUnresponsive || transient.Code == gpu.FaultDriver {
			transient = gpu.Fault{}
		}
		if transient.None() && g.reset.None() && g.fatal.None() {
			continue
		}
		saved[uuid] = Saved{
			Since: g.since.UTC().Truncate(time.Second), Transient: transient, Reset: g.reset, Fatal: g.fatal,
			Unreachable: g.unreachable, Asked: g.asked, Uncorrected: g.uncorrected,
		}
	}
	return saved
}

// Restore adds what an earlier agent saved. It is called before any observation.
func (t *Tracker) Restore(saved map[string]Saved, at time.Time) {
	for uuid, s := range saved {
		g := t.of(uuid)
		*g = state{
			transient: s.Transient, reset: s.Reset, fatal: s.Fatal, lastBad: at,
			unreachable: s.Unreachable, asked: s.Asked, uncorrected: s.Uncorrected, restored: !s.Reset.None(),
		}
		if g.settle(at); !g.since.IsZero() && s.Since.Before(at) {
			g.since = s.Since
		}
	}
}
