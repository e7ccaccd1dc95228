package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/mps"
	"github.com/gpucdi/gpucdi/runtime"
)

// mpsControl controls the MPS daemon. *mps.Control implements it.
type mpsControl interface {
	Ensure(ctx context.Context, s mps.Share) error
	Remove(ctx context.Context, s mps.Share) error
	EnsureServer(ctx context.Context, gpu string) error
	Namespaces(ctx context.Context, gpu string) ([]string, error)
	Served(ctx context.Context, gpus []string) ([]string, error)
	RemoveServer(ctx context.Context, gpu string) error
	Watch(ctx context.Context, changed chan<- struct{}, log *slog.Logger)
	Directory(s mps.Share) string
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

// computeLimits limits the compute time of claims and replicas through MPS. Its state is the claim records, the replicas
// in the ledger, and the GPUs whose compute mode it has changed: servers, namespaces, compute modes and CDI specs are
// restored from them, and others are removed.
type computeLimits struct {
	node     host.Root
	specDir  string
	control  mpsControl
	probe    func(ctx context.Context, uuid string) error // calls CUDA as a client of the server of a GPU
	settings computeModes
	pods     podReader                                                                 // nil without API server access
	podName  func(ctx context.Context, uid string) (namespace, name string, err error) // from the container runtime
	gate     *allocator.Gate
	latest   func() *snapshot
	claims   preparedClaims // nil: no DRA
	changed  *exclusiveGPUs
	log      *slog.Logger

	changing chan struct{}        // has a value while servers or compute modes are changed, and while the fields below are used
	probed   map[string]time.Time // last successful probe of a server, by UUID of its GPU
	failed   map[string]error     // of the latest probe of a server, by UUID of its GPU
	started  map[string]time.Time // when a container with a replica was last about to start, by UUID of its GPU
	left     map[string]bool      // GPUs whose server remains from ended claims only, by UUID
	released map[string]bool      // claims whose share was removed, by UID, until their records are
}

// preparedClaims are the claims that are prepared on this node. *dra.Driver implements it.
type preparedClaims interface {
	Records() []dra.Record
	IfPrepared(uid string, do func(dra.Record) error) error
}

// newComputeLimits returns the limits without claims. client is nil without API server access.
func (a *Agent) newComputeLimits(client *cluster.Client, gate *allocator.Gate) *computeLimits {
	control := &mps.Control{
		Program: mps.Program{Node: a.cfg.Node, DriverRoot: a.cfg.DriverRoot, Library: a.cfg.Library},
		Dir:     filepath.Join(a.cfg.StateDir, mps.Dir),
	}
	c := &computeLimits{
		node: a.cfg.Node, specDir: a.cfg.CDIDir, control: control,
		settings: &a.settings, gate: gate, latest: a.latest.Load, log: a.log,
		changing: make(chan struct{}, 1), probed: map[string]time.Time{}, failed: map[string]error{},
		started: map[string]time.Time{}, left: map[string]bool{}, released: map[string]bool{}, changed: newExclusiveGPUs(a.cfg.StateDir, a.log),
	}
	if client != nil {
		c.pods = client
	}
	c.probe = func(ctx context.Context, uuid string) error { return control.Probe(ctx, a.cfg.Worker, uuid) }
	c.podName = func(ctx context.Context, uid string) (namespace, name string, err error) {
		return runtime.PodName(ctx, a.cfg.Node, a.cfg.KubeletDir, uid)
	}
	return c
}

// prohibitTimeout bounds the commands after a failure, which may have been a timeout.
const prohibitTimeout = 5 * time.Second

// alone calls do once no other call changes servers or compute modes. Such a call takes long if MPS does not respond.
// alone stops waiting when ctx ends.
func (c *computeLimits) alone(ctx context.Context, do func() error) error {
	select {
	case c.changing <- struct{}{}:
		defer func() { <-c.changing }()
		return do()
	case <-ctx.Done():
		return fmt.Errorf("waiting for another command of MPS: %w", context.Cause(ctx))
	}
}

// percentage returns the maximum compute time of a claim that has a part of a device: its cores, unless its configuration
// sets a ceiling. maximum limits the ceiling, but does not reduce the cores.
func (c *computeLimits) percentage(id string, amount allocator.Amount, ceiling, maximum int) int {
	if !amount.Partial() || !c.isCeiled(id) {
		return 0
	}
	cores := int(amount.Cores)
	if ceiling == 0 {
		return cores
	}
	return min(ceiling, max(maximum, cores))
}

// isCeiled reports whether claims share a GPU through MPS.
func (c *computeLimits) isCeiled(id string) bool {
	part, _ := c.gate.Part(allocator.Key{Outlet: allocator.SliceOutlet, ID: id})
	return part.Share.Class == allocator.Ceiled
}

// client is a claim or a replica whose containers are clients of an MPS server.
type client struct {
	kind, name string // of its CDI device
	share      mps.Share
}

// limit implements dra.Config.LimitCompute.
func (c *computeLimits) limit(ctx context.Context, r dra.Record) error {
	for _, d := range r.Devices {
		var err error
		switch {
		case d.Admin:
		case d.MPSPercentage != 0:
			err = c.limitClaim(ctx, r.UID, d)
		case c.isCeiled(d.ID): // the claim has all of the GPU
			err = c.alone(ctx, func() error { return c.releaseGPU(ctx, d.ID) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *computeLimits) limitClaim(ctx context.Context, uid string, d dra.Device) error {
	client, err := clientOfClaim(uid, d)
	if err != nil {
		return err
	}
	return c.alone(ctx, func() error {
		// A program that was killed while its kernels ran makes a server hang, which is detected later.
		if c.left[d.ID] && c.gate.Unused(d.ID, uid) {
			if err := c.control.RemoveServer(ctx, d.ID); err != nil {
				return err
			}
			delete(c.failed, d.ID)
		}
		delete(c.left, d.ID)
		delete(c.released, uid)
		return c.apply(ctx, client)
	})
}

func clientOfClaim(uid string, d dra.Device) (client, error) {
	name, err := mps.Name(uid)
	return client{cdi.ClaimKind, uid, mps.Share{GPU: d.ID, Name: name, Percentage: d.MPSPercentage}}, err
}

// checkPods implements dra.Config.CheckPods.
func (c *computeLimits) checkPods(ctx context.Context, namespace string, pods []dra.Pod) error {
	for _, p := range pods {
		if err := c.checkPod(ctx, namespace, p.Name, p.UID); err != nil {
			return err
		}
	}
	return nil
}

// checkPod returns an error if a pod may run processes as root of the node, because MPS lets root change any limit. It
// also returns one if another pod now has the name: the kubelet would start that pod without preparing the claim again,
// and so without a check.
func (c *computeLimits) checkPod(ctx context.Context, namespace, name, uid string) error {
	if c.pods == nil {
		return errors.New("pods with limited compute time cannot be checked without API server access")
	}
	security, err := c.pods.PodSecurity(ctx, namespace, name)
	switch {
	case err != nil:
		return err
	case security.UID != uid:
		return fmt.Errorf("pod %s/%s was replaced by another of that name, or is a static pod, which cannot be checked; the kubelet retries", namespace, name)
	case security.Root():
		return fmt.Errorf("containers %q of pod %s/%s may run as root, which could remove the limit of their compute time; set runAsNonRoot: true and allowPrivilegeEscalation: false in them, or hostUsers: false in the pod",
			security.RootContainers, namespace, name)
	}
	return nil
}

// apply makes MPS limit a client, and writes the spec of its CDI device. It must be called by alone.
func (c *computeLimits) apply(ctx context.Context, client client) error {
	ensure := func() error { return c.control.Ensure(ctx, client.share) }
	if err := c.withServer(ctx, client.share.GPU, ensure); err != nil {
		return err
	}
	return cdi.PutMPSClient(c.specDir, c.node, client.kind, client.name, c.control.Directory(client.share))
}

// withServer lets only the MPS server use a GPU, and calls ensure, which makes it run. If no server runs, no process may
// use the GPU: in the exclusive mode, the first one would get all of it. It must be called by alone.
func (c *computeLimits) withServer(ctx context.Context, uuid string, ensure func() error) error {
	now, err := c.settings.ComputeMode(ctx, uuid)
	if err == nil && now == gpu.ComputeModeProhibited {
		_, err = c.control.Served(ctx, nil) // without a daemon, no server can start
	}
	if err != nil {
		return err
	}
	if err := c.setExclusive(ctx, uuid); err != nil {
		return err
	}
	err = ensure()
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), prohibitTimeout)
	defer cancel()
	switch served, problem := c.control.Served(ctx, []string{uuid}); {
	case errors.Is(problem, mps.ErrNotRunning), problem == nil && len(served) == 0:
		err = errors.Join(err, c.restrict(ctx, uuid, gpu.ComputeModeProhibited))
	}
	return err
}

// setExclusive lets only one process use a GPU, its MPS server. A program that does not find the server fails, instead
// of using the whole GPU.
func (c *computeLimits) setExclusive(ctx context.Context, uuid string) error {
	return c.restrict(ctx, uuid, gpu.ComputeModeExclusiveProcess)
}

// restrict sets a compute mode other than the default.
func (c *computeLimits) restrict(ctx context.Context, uuid string, mode gpu.ComputeMode) error {
	if err := c.changed.add(uuid); err != nil {
		return fmt.Errorf("%w; check --state-dir", err)
	}
	return c.setMode(ctx, uuid, mode)
}

func (c *computeLimits) setMode(ctx context.Context, uuid string, mode gpu.ComputeMode) error {
	now, err := c.settings.ComputeMode(ctx, uuid)
	if err != nil || now == mode {
		return err
	}
	if err := c.settings.SetComputeMode(ctx, uuid, mode); err != nil {
		return err
	}
	c.log.Info("compute mode of GPU changed", "gpu", uuid, "mode", mode)
	return nil
}

// release implements dra.Config.ReleaseCompute. The server of a GPU remains until a check finds it unused: after a forced
// deletion, containers of the claim may still run, and would get all of the GPU.
func (c *computeLimits) release(ctx context.Context, r dra.Record) error {
	var errs []error
	for _, d := range r.Devices {
		if d.MPSPercentage == 0 {
			continue
		}
		client, err := clientOfClaim(r.UID, d)
		if err != nil {
			continue // it was never applied
		}
		errs = append(errs, cdi.RemoveMPSClient(c.specDir, client.kind, client.name),
			c.alone(ctx, func() error { return c.removeShare(ctx, client.share, r.UID) }))
	}
	return errors.Join(errs...)
}

// removeShare removes the share of a claim. It must be called by alone.
func (c *computeLimits) removeShare(ctx context.Context, s mps.Share, uid string) error {
	c.released[uid] = true
	if !slices.ContainsFunc(c.users(s.GPU), func(other string) bool { return !c.released[other] }) {
		c.left[s.GPU] = true
		delete(c.probed, s.GPU) // the next check with a claim calls CUDA
	}
	return c.control.Remove(ctx, s)
}

// endServer lets programs use a GPU without MPS again, even if MPS does not respond, and ends its server, which nothing
// uses. A server that is left ends with a later check. It must be called by alone.
func (c *computeLimits) endServer(ctx context.Context, uuid string) error {
	delete(c.probed, uuid)
	delete(c.failed, uuid)
	c.left[uuid] = true
	err := errors.Join(c.resetMode(ctx, uuid), c.control.RemoveServer(ctx, uuid))
	if err == nil {
		delete(c.left, uuid)
	}
	return err
}

// releaseGPU is endServer for a GPU that a claim has to itself. The server would use memory of the claim. It must be called
// by alone.
func (c *computeLimits) releaseGPU(ctx context.Context, uuid string) error {
	if (c.changed.has(uuid) || c.left[uuid]) && len(c.users(uuid)) == 0 {
		return c.endServer(ctx, uuid)
	}
	return c.setMode(ctx, uuid, gpu.ComputeModeDefault) // no server remains
}

// resetMode lets programs use a GPU without MPS again.
func (c *computeLimits) resetMode(ctx context.Context, uuid string) error {
	if err := c.setMode(ctx, uuid, gpu.ComputeModeDefault); err != nil {
		return err
	}
	return c.changed.remove(uuid) // other outlets get the GPU from now on
}

// users returns the UIDs of the claims that use a GPU through MPS.
func (c *computeLimits) users(uuid string) (uids []string) {
	if c.claims == nil {
		return nil
	}
	for _, r := range c.claims.Records() {
		if slices.ContainsFunc(r.Devices, func(d dra.Device) bool { return d.ID == uuid && d.MPSPercentage != 0 }) {
			uids = append(uids, r.UID)
		}
	}
	return uids
}
