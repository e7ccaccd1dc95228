package health

import (
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Saved is the state of a GPU or MIG device that must survive a restart of the agent: faults from events, which are
// not repeated, and faults that only a reset or the return of the GPU clears. The next probe detects all others again.
type Saved struct {
	Since     time.Time `json:"since"`
	Transient gpu.Fault `json:"transient,omitzero"` // Restore restarts its quiet period
	Reset     gpu.Fault `json:"reset,omitzero"`
	Fatal     gpu.Fault `json:"fatal,omitzero"`
	Broken    gpu.Fault `json:"broken,omitzero"` // the next probe confirms or clears it; saved so that Since is kept

	// Unreachable reports whether the GPU has been unreachable since the fatal fault. If so, a response means that it
	// has returned.
	Unreachable bool `json:"unreachable,omitempty"`
	// ActionRequired reports whether the driver has required a recovery action since the reset fault.
	ActionRequired bool `json:"actionRequired,omitempty"`
	// Uncorrected is the latest number of uncorrectable ECC errors. A lower number indicates a reset.
	Uncorrected uint64 `json:"uncorrected,omitempty"`
}

// Save returns the state to persist, by UUID.
func (t *Tracker) Save() map[string]Saved {
	saved := map[string]Saved{}
	for uuid, g := range t.gpus {
		if g.transient.None() && g.reset.None() && g.fatal.None() && g.broken.None() {
			continue
		}
		saved[uuid] = Saved{
			Since: g.since.UTC().Truncate(time.Second), Transient: g.transient, Reset: g.reset, Fatal: g.fatal, Broken: g.broken,
			Unreachable: g.unreachable, ActionRequired: g.actionRequired, Uncorrected: g.uncorrected,
		}
	}
	return saved
}

// Restore adds the state that an earlier agent saved. It must be called before all other inputs.
func (t *Tracker) Restore(saved map[string]Saved, at time.Time) {
	for uuid, s := range saved {
		g := t.of(uuid)
		*g = state{
			transient: s.Transient, reset: s.Reset, fatal: s.Fatal, broken: s.Broken, lastFault: at,
			unreachable: s.Unreachable, actionRequired: s.ActionRequired, uncorrected: s.Uncorrected, restored: !s.Reset.None(),
		}
		if g.updateSince(at); !g.since.IsZero() && s.Since.Before(at) {
			g.since = s.Since
		}
	}
}
