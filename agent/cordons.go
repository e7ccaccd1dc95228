package agent

import (
	"context"

	"github.com/gpucdi/gpucdi/cordon"
	"github.com/gpucdi/gpucdi/gpu"
)

// cordons are the devices that an admin has cordoned.
type cordons struct {
	devices map[string]gpu.Fault // by UUID
	problem error                // why devices may be incomplete or stale, or nil
}

func newCordons(all map[string]cordon.Cordon, problem error) cordons {
	c := cordons{devices: map[string]gpu.Fault{}, problem: problem}
	for uuid, record := range all {
		c.devices[uuid] = record.Fault()
	}
	return c
}

// read reads the cordons below stateDir. It does nothing if stateDir is empty.
func (c *cordons) read(stateDir string) {
	if stateDir != "" {
		*c = newCordons(cordon.Open(stateDir).List())
	}
}

// update applies an update from watchCordons. If it is an error, the last cordons stay in effect.
func (c *cordons) update(u update[cordons]) {
	if u.err != nil {
		c.problem = u.err
		return
	}
	*c = u.value
}

// watchCordons yields the cordons below the state directory.
func (a *Agent) watchCordons(ctx context.Context, yield func(cordons)) error {
	return cordon.Open(a.cfg.StateDir).Watch(ctx, a.log, func(all map[string]cordon.Cordon, problem error) {
		yield(newCordons(all, problem))
	})
}
