package health

import "time"

// Saved is what has to outlive the agent of one GPU or MIG device: faults that were an event,
// which nothing repeats, and those that only a reset or the GPU's return clears. Others show
// again with the next probe.
type Saved struct {
	Since     time.Time `json:"since"`
	Transient *Fault    `json:"transient,omitempty"` // its quiet period begins anew
	Reset     *Fault    `json:"reset,omitempty"`
	Fatal     *Fault    `json:"fatal,omitempty"`

	// Unreachable: the GPU was away since the fatal fault, so an answer is its return.
	Unreachable bool `json:"unreachable,omitempty"`
	// Asked: the driver has required a recovery action since the reset fault.
	Asked bool `json:"asked,omitempty"`
	// Uncorrected is the latest count of memory errors: a lower one shows a reset.
	Uncorrected uint64 `json:"uncorrected,omitempty"`
}

// Fault is a fault in a Saved.
type Fault struct {
	Category string `json:"category"`
	Reason   string `json:"reason"`
	Recovery string `json:"recovery"` // what it recovers after
}

// Save returns what has to outlive the agent, by UUID.
func (t *Tracker) Save() map[string]Saved {
	saved := map[string]Saved{}
	for uuid, g := range t.gpus {
		transient := g.transient
		if transient.category == unresponsive {
			transient = cause{}
		}
		if transient == (cause{}) && g.reset == (cause{}) && g.fatal == (cause{}) {
			continue
		}
		saved[uuid] = Saved{
			Since: g.since.UTC().Truncate(time.Second), Transient: faultOf(transient), Reset: faultOf(g.reset), Fatal: faultOf(g.fatal),
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
			transient: causeOf(s.Transient), reset: causeOf(s.Reset), fatal: causeOf(s.Fatal), lastBad: at,
			unreachable: s.Unreachable, asked: s.Asked, uncorrected: s.Uncorrected, restored: s.Reset != nil,
		}
		if g.settle(at); !g.since.IsZero() && s.Since.Before(at) {
			g.since = s.Since
		}
	}
}

func faultOf(c cause) *Fault {
	if c == (cause{}) {
		return nil
	}
	return &Fault{c.category, c.reason, c.heals}
}

func causeOf(f *Fault) cause {
	if f == nil {
		return cause{}
	}
	return cause{f.Category, f.Reason, f.Recovery}
}
