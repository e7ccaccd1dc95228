package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

const (
	// computeInterval is the time between two checks of the MPS servers.
	computeInterval = 10 * time.Second
	// computeTimeout bounds the commands of a check for a GPU, and probeTimeout a call to CUDA.
	computeTimeout = 10 * time.Second
	probeTimeout   = 10 * time.Second
	// probeInterval is the time between two calls to CUDA through the same server. Each creates a context on its GPU.
	probeInterval = time.Minute
)

// maintain restores what a restart of the MPS daemon or of the driver has removed, and yields the faults of GPUs whose
// server does not work, by UUID, until ctx ends.
func (c *computeLimits) maintain(ctx context.Context, yield func(map[string]gpu.Fault)) {
	var last map[string]gpu.Fault
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(computeInterval):
		}
		faults := c.check(ctx)
		if ctx.Err() == nil && !maps.Equal(faults, last) {
			yield(faults)
			last = faults
		}
	}
}

// check restores the shares of each GPU, and returns the faults of those whose server does not work.
func (c *computeLimits) check(ctx context.Context) map[string]gpu.Fault {
	if err := c.prune(ctx); err != nil {
		return nil
	}
	shares, err := c.shares(ctx)
	if err != nil {
		return nil
	}
	faults := map[string]gpu.Fault{}
	for uuid, claims := range shares {
		if err := c.checkGPU(ctx, uuid, claims); err != nil {
			faults[uuid] = gpu.Fault{Code: gpu.FaultMPS, Message: gpu.OneLine(err), Remedy: "check the log of gpucdi mps"}
		}
	}
	return faults
}

// shares returns the claims that use each GPU through MPS, by UUID and claim UID, with the GPUs that have none yet, and
// those whose server has to end.
func (c *computeLimits) shares(ctx context.Context) (map[string]map[string]dra.Device, error) {
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	shares := map[string]map[string]dra.Device{}
	for uuid := range c.unreset {
		shares[uuid] = map[string]dra.Device{}
	}
	for _, uuid := range c.planned() {
		shares[uuid] = map[string]dra.Device{}
	}
	for _, r := range c.records() {
		for _, d := range r.Devices {
			if d.MPSPercentage == 0 {
				continue
			}
			if shares[d.ID] == nil {
				shares[d.ID] = map[string]dra.Device{}
			}
			shares[d.ID][r.UID] = d
		}
	}
	return shares, nil
}

// planned returns the UUIDs of the GPUs that claims are to share through MPS.
func (c *computeLimits) planned() (uuids []string) {
	for _, r := range c.latest().plan.resources {
		for _, d := range r.Devices {
			if d.Class == allocator.Ceiled {
				uuids = append(uuids, d.ID)
			}
		}
	}
	return uuids
}

func (c *computeLimits) checkGPU(ctx context.Context, uuid string, claims map[string]dra.Device) error {
	// Each GPU has its own time, so that one that does not respond does not make others unhealthy.
	limited, cancel := context.WithTimeoutCause(ctx, computeTimeout, fmt.Errorf("no response within %s", computeTimeout))
	defer cancel()
	if len(claims) == 0 {
		return c.endIdle(limited, uuid)
	}
	var errs []error
	for uid, d := range claims {
		errs = append(errs, c.reapply(limited, uid, d))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.probeServer(ctx, uuid)
}

// probeServer calls CUDA through the server of a GPU, unless a recent call has succeeded or the server has ended.
func (c *computeLimits) probeServer(ctx context.Context, uuid string) error {
	due, err := c.probeIsDue(ctx, uuid)
	if err != nil || !due {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no response within %s", probeTimeout))
	defer cancel()
	problem := c.probe(limited, c.control.ServerDirectory(uuid))
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case len(c.users(uuid)) == 0: // the server may have ended during the call
		return nil
	case problem != nil:
		return fmt.Errorf("calling CUDA through MPS: %w; it recovers when the pods that share the GPU have ended", problem)
	}
	c.probed[uuid] = time.Now()
	return nil
}

func (c *computeLimits) probeIsDue(ctx context.Context, uuid string) (bool, error) {
	unlock, err := c.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	return len(c.users(uuid)) > 0 && time.Since(c.probed[uuid]) >= probeInterval, nil
}

// endIdle ends a server without claims and resets the compute mode, such as after a claim was released while the daemon
// did not respond.
func (c *computeLimits) endIdle(ctx context.Context, uuid string) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if len(c.users(uuid)) > 0 {
		return nil
	}
	if err := c.endServer(ctx, uuid); err != nil || !slices.Contains(c.planned(), uuid) {
		return err
	}
	_, err = c.control.Serves(ctx, uuid) // claims require the daemon
	return err
}

// prune removes the CDI specs of claims that are not prepared, and forgets released claims without a record.
func (c *computeLimits) prune(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	prepared := map[string]bool{}
	for _, r := range c.records() {
		prepared[r.UID] = true
	}
	maps.DeleteFunc(c.released, func(uid string, _ bool) bool { return !prepared[uid] })
	uids, _ := cdi.ClaimSpecs(c.specDir)
	for _, uid := range uids {
		if prepared[uid] {
			continue
		}
		if err := cdi.RemoveClaim(c.specDir, uid); err != nil {
			c.log.Warn("CDI spec of a claim not removed, will retry", "uid", uid, "err", err)
		}
	}
	return nil
}
