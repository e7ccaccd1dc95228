package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/mps"
)

const (
	// computeInterval is the time between two checks of the MPS servers.
	computeInterval = 10 * time.Second
	// computeTimeout bounds the commands of a check, and probeTimeout a call to CUDA.
	computeTimeout = 20 * time.Second
	probeTimeout   = 10 * time.Second
	// probeInterval is the time between two calls to CUDA through the same server. Each creates a context on its GPU.
	probeInterval = time.Minute
)

// mpsControl controls the MPS daemon. *mps.Control implements it.
type mpsControl interface {
	Ensure(ctx context.Context, s mps.Share) error
	Remove(ctx context.Context, s mps.Share) error
	Serves(ctx context.Context, gpu string) (bool, error)
	RemoveServer(ctx context.Context, gpu string) error
	Directory(s mps.Share) string
	ServerDirectory(gpu string) string
}

// computeModes reads and sets the compute modes of GPUs. *driver.Settings implements it.
type computeModes interface {
	ComputeMode(ctx context.Context, uuid string) (gpu.ComputeMode, error)
	SetComputeMode(ctx context.Context, uuid string, mode gpu.ComputeMode) error
}

// podReader reads the security settings of pods. *cluster.Client implements it.
type podReader interface {
	PodSecurity(ctx context.Context, namespace, name string) (cluster.PodSecurity, error)
}

// computeLimits limits the compute time of claims through MPS. The claim records are its state: servers, namespaces,
// compute modes and CDI specs are restored from them.
type computeLimits struct {
	node     host.Root
	specDir  string
	control  mpsControl
	probe    func(ctx context.Context, dir string) error // calls CUDA as a client of the server with a pipe directory
	settings computeModes
	pods     podReader
	gate     *allocator.Gate
	latest   func() *snapshot
	records  func() []dra.Record // of prepared claims
	log      *slog.Logger

	mu     sync.Mutex           // serializes changes of servers and compute modes
	probed map[string]time.Time // last successful probe of a server, by UUID of its GPU
}

func (a *Agent) computeLimits(client *cluster.Client, gate *allocator.Gate) *computeLimits {
	program := mps.Program{Node: a.cfg.Node, DriverRoot: a.cfg.DriverRoot, Library: a.cfg.Library}
	c := &computeLimits{
		node: a.cfg.Node, specDir: a.cfg.CDIDir, control: &mps.Control{Program: program, Dir: filepath.Join(a.cfg.StateDir, mps.Dir)},
		settings: &a.settings, pods: client, gate: gate, latest: a.latest.Load, log: a.log, probed: map[string]time.Time{},
	}
	c.probe = func(ctx context.Context, dir string) error { return program.Probe(ctx, a.cfg.Worker, dir) }
	return c
}

// percentage implements dra.Config.MPSPercentage: the cores of the claim, unless its ceiling allows another maximum.
func (c *computeLimits) percentage(id string, amount allocator.Amount, ceiling int) int {
	if !amount.Partial() || !c.isCeiled(id) {
		return 0
	}
	if ceiling != 0 {
		return ceiling
	}
	return int(amount.Cores)
}

// isCeiled reports whether claims share a GPU through MPS.
func (c *computeLimits) isCeiled(id string) bool {
	part, _ := c.gate.Part(allocator.Key{Outlet: allocator.SliceOutlet, ID: id})
	return part.Share.Class == allocator.Ceiled
}

// limit implements dra.Config.LimitCompute.
func (c *computeLimits) limit(ctx context.Context, r dra.Record, pods []dra.Pod) error {
	for _, d := range r.Devices {
		switch {
		case d.Admin:
		case d.MPSPercentage != 0:
			if err := c.checkPods(ctx, r.Namespace, pods); err != nil {
				return err
			}
			if err := c.apply(ctx, r.UID, d); err != nil {
				return err
			}
		case c.isCeiled(d.ID): // the claim has all of the GPU
			if err := c.setMode(ctx, d.ID, gpu.ComputeModeDefault); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPods returns an error if a pod may run processes as root of the node: MPS lets them change any limit.
func (c *computeLimits) checkPods(ctx context.Context, namespace string, pods []dra.Pod) error {
	for _, p := range pods {
		security, err := c.pods.PodSecurity(ctx, namespace, p.Name)
		if err != nil {
			return err
		}
		if security.UID == p.UID && security.Root() {
			return fmt.Errorf("containers %q of pod %s/%s may run as root, which could remove the limit of their compute time; set runAsNonRoot: true, or hostUsers: false in the pod",
				security.RootContainers, namespace, p.Name)
		}
	}
	return nil
}

// apply makes MPS limit a device of a claim, and writes the CDI spec of the claim.
func (c *computeLimits) apply(ctx context.Context, uid string, d dra.Device) error {
	share, err := shareOf(uid, d)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Otherwise a program that does not find the server uses the whole GPU.
	if err := c.setMode(ctx, d.ID, gpu.ComputeModeExclusiveProcess); err != nil {
		return err
	}
	if err := c.control.Ensure(ctx, share); err != nil {
		return err
	}
	return cdi.PutMPSClient(c.specDir, c.node, uid, c.control.Directory(share))
}

func shareOf(uid string, d dra.Device) (mps.Share, error) {
	name, err := mps.Name(uid)
	return mps.Share{GPU: d.ID, Name: name, Percentage: d.MPSPercentage}, err
}

func (c *computeLimits) setMode(ctx context.Context, uuid string, mode gpu.ComputeMode) error {
	if now, err := c.settings.ComputeMode(ctx, uuid); err != nil || now == mode {
		return err
	}
	c.log.Info("compute mode of GPU changed", "gpu", uuid, "mode", mode)
	return c.settings.SetComputeMode(ctx, uuid, mode)
}

// release implements dra.Config.ReleaseCompute. The server of a GPU ends with the last claim that uses it, so that a
// server that hangs is replaced.
func (c *computeLimits) release(ctx context.Context, r dra.Record) error {
	var errs []error
	for _, d := range r.Devices {
		if d.MPSPercentage == 0 {
			continue
		}
		share, err := shareOf(r.UID, d)
		if err != nil {
			continue // it was never applied
		}
		errs = append(errs, c.releaseShare(ctx, r.UID, share))
	}
	return errors.Join(errs...)
}

func (c *computeLimits) releaseShare(ctx context.Context, uid string, share mps.Share) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	errs := []error{cdi.RemoveClaim(c.specDir, uid)}
	others := slices.ContainsFunc(c.users(share.GPU), func(other string) bool { return other != uid })
	if others {
		return errors.Join(append(errs, c.control.Remove(ctx, share))...)
	}
	return errors.Join(append(errs, c.endServer(ctx, share.GPU))...)
}

// endServer ends the server of a GPU, and lets programs use the GPU without MPS again. The caller holds the lock.
func (c *computeLimits) endServer(ctx context.Context, uuid string) error {
	delete(c.probed, uuid)
	if err := c.control.RemoveServer(ctx, uuid); err != nil {
		return err
	}
	return c.setMode(ctx, uuid, gpu.ComputeModeDefault)
}

// users returns the UIDs of the claims that use a GPU through MPS.
func (c *computeLimits) users(uuid string) (uids []string) {
	for _, r := range c.records() {
		if slices.ContainsFunc(r.Devices, func(d dra.Device) bool { return d.ID == uuid && d.MPSPercentage != 0 }) {
			uids = append(uids, r.UID)
		}
	}
	return uids
}

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
	ctx, cancel := context.WithTimeoutCause(ctx, computeTimeout, fmt.Errorf("no response within %s", computeTimeout))
	defer cancel()
	shares := c.shares()
	if len(shares) == 0 {
		return nil
	}
	c.pruneSpecs()
	faults := map[string]gpu.Fault{}
	for uuid, claims := range shares {
		if err := c.checkGPU(ctx, uuid, claims); err != nil {
			faults[uuid] = gpu.Fault{Code: gpu.FaultMPS, Message: gpu.OneLine(err), Remedy: "check the log of gpucdi mps"}
		}
	}
	return faults
}

// shares returns the claims that use each GPU through MPS, by UUID and claim UID, with the GPUs that have none yet.
func (c *computeLimits) shares() map[string]map[string]dra.Device {
	shares := map[string]map[string]dra.Device{}
	for _, r := range c.latest().plan.resources {
		for _, d := range r.Devices {
			if d.Class == allocator.Ceiled {
				shares[d.ID] = map[string]dra.Device{}
			}
		}
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
	return shares
}

func (c *computeLimits) checkGPU(ctx context.Context, uuid string, claims map[string]dra.Device) error {
	if len(claims) == 0 {
		return c.endIdle(ctx, uuid)
	}
	var errs []error
	for uid, d := range claims {
		errs = append(errs, c.apply(ctx, uid, d))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.mu.Lock()
	due := time.Since(c.probed[uuid]) >= probeInterval
	c.mu.Unlock()
	if !due {
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no response within %s", probeTimeout))
	defer cancel()
	if err := c.probe(limited, c.control.ServerDirectory(uuid)); err != nil {
		return fmt.Errorf("calling CUDA through MPS: %w; it recovers when the pods that share the GPU have ended", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probed[uuid] = time.Now()
	return nil
}

// endIdle ends a server without claims, such as one whose last claim was released while the daemon did not respond.
func (c *computeLimits) endIdle(ctx context.Context, uuid string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.control.Serves(ctx, uuid)
	if err != nil || !found || len(c.users(uuid)) > 0 {
		return err
	}
	return c.endServer(ctx, uuid)
}

// pruneSpecs removes the CDI specs of claims that are not prepared.
func (c *computeLimits) pruneSpecs() {
	uids, _ := cdi.ClaimSpecs(c.specDir)
	for _, uid := range uids {
		c.mu.Lock()
		if !slices.ContainsFunc(c.records(), func(r dra.Record) bool { return r.UID == uid }) {
			if err := cdi.RemoveClaim(c.specDir, uid); err != nil {
				c.log.Warn("CDI spec of a claim not removed, will retry", "uid", uid, "err", err)
			}
		}
		c.mu.Unlock()
	}
}
