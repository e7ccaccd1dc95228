package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/mps"
	"github.com/gpucdi/gpucdi/runtime"
)

const (
	// computeInterval is the time between two checks of the MPS servers.
	computeInterval = 10 * time.Second
	// computeTimeout bounds the commands of a check for a GPU, and probeTimeout a call to CUDA.
	computeTimeout = 10 * time.Second
	probeTimeout   = 10 * time.Second
	// probeInterval is the time from a successful call to CUDA through a server to the next call. Each call creates a
	// context on the GPU.
	probeInterval = time.Minute
)

// maintain restores what a restart of the MPS daemon or of the driver has removed, and yields the faults of GPUs that
// cannot be used through MPS, by UUID, until ctx ends. It also yields when other GPUs have a changed compute mode.
func (c *computeLimits) maintain(ctx context.Context, yield func(map[string]gpu.Fault)) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	var last map[string]gpu.Fault
	var exclusive []string
	var events chan struct{} // nil before a GPU is shared
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-time.After(computeInterval):
		}
		faults, now := c.check(ctx, last), c.changed.all()
		if ctx.Err() == nil && (!maps.Equal(faults, last) || !slices.Equal(now, exclusive)) {
			yield(faults)
			last, exclusive = faults, now
		}
		if events == nil && len(exclusive) > 0 {
			events = make(chan struct{}, 1)
			watch.Go(func() { c.control.Watch(ctx, events, c.log) })
		}
	}
}

// check restores the shares of each GPU, and returns the faults of GPUs that cannot be used through MPS. last are the
// faults of the previous check, which remain while the driver worker is absent or busy.
func (c *computeLimits) check(ctx context.Context, last map[string]gpu.Fault) map[string]gpu.Fault {
	if c.prune(ctx) != nil { // ctx has ended
		return nil
	}
	faults := map[string]gpu.Fault{}
	report := func(uuid string, err error) {
		switch {
		case err == nil:
		case !driver.Temporary(err):
			faults[uuid] = mpsFault(err)
		case !last[uuid].None():
			faults[uuid] = last[uuid]
		}
	}
	shared, others, err := c.gpus(ctx)
	for uuid := range shared {
		if err != nil { // a daemon that does not respond is not queried again for each GPU
			faults[uuid] = mpsFault(errors.Join(err, c.keepRestricted(ctx, uuid, err)))
			continue
		}
		report(uuid, c.checkGPU(ctx, uuid))
	}
	for uuid := range others {
		err := c.checkGPU(ctx, uuid)
		if c.changed.has(uuid) { // a leftover server alone does not make the GPU unusable
			report(uuid, err)
		}
	}
	return faults
}

// keepRestricted restricts the compute mode of a GPU that is used through MPS, because a restart of the driver resets
// it, and programs would get the whole GPU while the daemon does not respond. If the daemon has ended, no program may use
// the GPU: in the exclusive mode, the first one would get all of it. It resets the mode of an unused GPU.
func (c *computeLimits) keepRestricted(ctx context.Context, uuid string, problem error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, computeTimeout, fmt.Errorf("no response within %s", computeTimeout))
	defer cancel()
	return c.alone(ctx, func() error {
		switch {
		case len(c.users(uuid)) == 0 && !c.replicated(uuid) && !c.changed.has(uuid):
			return nil
		case c.unused(uuid):
			return c.resetMode(ctx, uuid)
		case errors.Is(problem, mps.ErrNotRunning):
			return c.restrict(ctx, uuid, gpu.ComputeModeProhibited)
		default:
			return c.setExclusive(ctx, uuid)
		}
	})
}

func mpsFault(err error) gpu.Fault {
	return gpu.Fault{Code: gpu.FaultMPS, Message: gpu.OneLine(err), Remedy: "check the log of gpucdi mps"}
}

// gpus returns the UUIDs of the GPUs that are shared through MPS or will be, and of others that still have a server or
// a changed compute mode. The error is that of the daemon, without which shared GPUs cannot be used.
func (c *computeLimits) gpus(ctx context.Context) (shared, others map[string]bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, computeTimeout, fmt.Errorf("no response within %s", computeTimeout))
	defer cancel()
	shared, others = map[string]bool{}, map[string]bool{}
	for _, uuid := range c.planned() {
		shared[uuid] = true
	}
	var known []string
	for _, g := range c.latest().known.GPUs {
		known = append(known, g.UUID)
		if len(c.users(g.UUID)) > 0 || c.replicated(g.UUID) {
			shared[g.UUID] = true
		}
	}
	served, err := c.control.Served(ctx, known)
	for _, uuid := range append(served, c.changed.all()...) {
		if !shared[uuid] {
			others[uuid] = true
		}
	}
	return shared, others, err
}

// planned returns the UUIDs of the GPUs that are to be shared through MPS. It omits GPUs that the driver cannot share
// this way: they have a fault with the reason.
func (c *computeLimits) planned() (uuids []string) {
	for _, r := range c.latest().plan.resources {
		for _, d := range r.Devices {
			if d.Class == allocator.Ceiled && !d.Unenforceable {
				uuids = append(uuids, d.ID)
			}
		}
	}
	return uuids
}

func (c *computeLimits) checkGPU(ctx context.Context, uuid string) error {
	// Each GPU has its own timeout, so that one that does not respond does not make others unhealthy.
	limited, cancel := context.WithTimeoutCause(ctx, computeTimeout, fmt.Errorf("no response within %s", computeTimeout))
	defer cancel()
	users, replicated := c.users(uuid), c.replicated(uuid)
	if len(users) == 0 && !replicated {
		return c.alone(limited, func() error { return c.checkLeftover(limited, uuid) })
	}
	var errs []error
	if replicated {
		errs = append(errs, c.alone(limited, func() error { return c.serve(limited, uuid) }))
	}
	for _, uid := range users {
		errs = append(errs, c.claims.IfPrepared(uid, func(r dra.Record) error { return c.limit(limited, r) }))
	}
	errs = append(errs, c.alone(limited, func() error { return c.pruneNamespaces(limited, uuid) }))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.probeServer(ctx, limited, uuid)
}

// probeServer calls CUDA through the server of a GPU, unless a recent call has succeeded, nothing uses the server, or no
// server runs. commands bounds the commands to the daemon.
func (c *computeLimits) probeServer(ctx, commands context.Context, uuid string) error {
	due := false
	err := c.alone(commands, func() error {
		if !c.isUsed(uuid) || time.Since(c.probed[uuid]) < probeInterval {
			return nil
		}
		served, err := c.control.Served(commands, []string{uuid}) // no server runs before the first claim is limited
		due = len(served) > 0
		return err
	})
	if err != nil || !due {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no response within %s", probeTimeout))
	defer cancel()
	problem := c.probe(limited, uuid)
	return c.alone(ctx, func() error {
		switch {
		case !c.isUsed(uuid): // the server may have ended during the call
			return nil
		case problem != nil:
			c.failed[uuid] = fmt.Errorf("calling CUDA through MPS: %w; the GPU recovers when a later call succeeds, or the pods that share it have ended", problem)
			return c.failed[uuid]
		}
		c.probed[uuid] = time.Now()
		delete(c.failed, uuid)
		return nil
	})
}

// isUsed reports whether a claim or a container uses the server of a GPU.
func (c *computeLimits) isUsed(uuid string) bool {
	return len(c.users(uuid)) > 0 || c.replicated(uuid) && c.inUse(uuid)
}

// checkLeftover ends a server without clients and resets the compute mode, once the GPU is unused. Until then it keeps the
// server, so that containers of ended claims do not get all of the GPU. It must be called by alone.
func (c *computeLimits) checkLeftover(ctx context.Context, uuid string) error {
	switch {
	case c.unused(uuid):
		return c.endServer(ctx, uuid)
	case c.changed.has(uuid):
		return errors.Join(c.failed[uuid], c.withServer(ctx, uuid, func() error { return c.control.EnsureServer(ctx, uuid) }))
	case c.left[uuid] && len(c.users(uuid)) == 0: // its end failed
		return c.endServer(ctx, uuid)
	}
	return c.failed[uuid]
}

// unused reports whether neither a claim nor a container may use a GPU through MPS, even if the record of the claim or
// the state of the ledger is lost.
func (c *computeLimits) unused(uuid string) bool {
	return len(c.users(uuid)) == 0 && !c.replicated(uuid) && c.latest().offers != nil && c.gate.Unused(uuid, "") && !c.inUse(uuid) && !c.hasClient(uuid)
}

// hasClient reports whether a running container is a client of the server of a GPU. The ledger may not know it: it
// releases a GPU that the config withdraws while the runtime is absent.
func (c *computeLimits) hasClient(uuid string) bool {
	s, dir := c.latest(), c.control.Directory(mps.Share{GPU: uuid})
	return !s.running.listed || slices.ContainsFunc(s.running.containers, func(r runtime.Container) bool {
		return slices.ContainsFunc(r.Sources, func(path string) bool { return filepath.Dir(path) == dir }) &&
			(r.PID == 0 || !processEnded(c.node, r.PID))
	})
}

// prune removes the CDI specs of claims that are not prepared, and of replicas that are not in the ledger. The error
// reports that ctx has ended.
func (c *computeLimits) prune(ctx context.Context) error {
	return c.alone(ctx, func() error {
		uids := c.preparedUIDs()
		maps.DeleteFunc(c.released, func(uid string, _ bool) bool { return !slices.Contains(uids, uid) })
		c.pruneKind(cdi.ClaimKind, func(uid string) bool { return slices.Contains(uids, uid) })
		c.pruneKind(cdi.ReplicaKind, c.isReplica)
		return nil
	})
}

// pruneNamespaces removes the namespaces of a server that belong to no claim and no replica, for example because the
// daemon did not respond when a claim was released. It must be called by alone.
func (c *computeLimits) pruneNamespaces(ctx context.Context, uuid string) error {
	// The snapshot may lack the replica of a container that has just started.
	if time.Since(c.started[uuid]) < 2*containersInterval {
		return nil
	}
	names, err := c.control.Namespaces(ctx, uuid)
	used := c.replicaNames(uuid)
	for _, uid := range c.preparedUIDs() {
		if name, err := mps.Name(uid); err == nil {
			used[name] = true
		}
	}
	errs := []error{err}
	for _, name := range names {
		if !used[name] {
			errs = append(errs, c.control.Remove(ctx, mps.Share{GPU: uuid, Name: name}))
		}
	}
	return errors.Join(errs...)
}

// preparedUIDs returns the UIDs of all prepared claims, also of those whose records are lost.
func (c *computeLimits) preparedUIDs() (uids []string) {
	for _, claim := range c.gate.Claims() {
		uids = append(uids, claim.UID)
	}
	if c.claims != nil {
		for _, r := range c.claims.Records() {
			uids = append(uids, r.UID)
		}
	}
	return uids
}

func (c *computeLimits) pruneKind(kind string, isUsed func(name string) bool) {
	names, _ := cdi.MPSClients(c.specDir, kind)
	for _, name := range names {
		if isUsed(name) {
			continue
		}
		if err := cdi.RemoveMPSClient(c.specDir, kind, name); err != nil {
			c.log.Warn("CDI spec of an MPS client not removed, will retry", "device", kind+"="+name, "err", err)
		}
	}
}
