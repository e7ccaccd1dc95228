package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

const (
	// evidenceTimeout bounds a request to the kubelet or the container runtime.
	evidenceTimeout = 5 * time.Second
	// claimsTimeout bounds the list of all ResourceClaims of the cluster, which can have hundreds of pages.
	// The other sources wait for it.
	claimsTimeout = 15 * time.Second
	// writeTimeout bounds the wait for the kubelet to write its checkpoint. After that, the existing one is read.
	writeTimeout = time.Second
	// firstResponseTimeout is how long the agent waits after its start for the first response of an optional source.
	firstResponseTimeout = 15 * time.Second
)

// evidence is the latest response of each source of device holders; nil for a source that has not responded yet.
type evidence struct {
	allocatable *allocator.Allocatable
	pods        *allocator.PodResources
	checkpoint  *kubelet.Checkpoint
	runtime     *containers
	allocations *allocator.Allocations
}

// containers is a response of the container runtime.
type containers struct {
	requested, received time.Time
	absent              bool // no runtime responds
	runtime.Containers
}

// merge replaces the responses that newer contains.
func (e *evidence) merge(newer evidence) {
	if newer.allocatable != nil {
		e.allocatable = newer.allocatable
	}
	if newer.pods != nil {
		e.pods = newer.pods
	}
	if newer.checkpoint != nil {
		e.checkpoint = newer.checkpoint
	}
	if newer.runtime != nil {
		e.runtime = newer.runtime
	}
	if newer.allocations != nil {
		e.allocations = newer.allocations
	}
}

// observation returns the evidence with device IDs resolved to parts.
func (e *evidence) observation(r partResolver) allocator.Observation {
	return allocator.Observation{Allocatable: e.allocatable, Pods: e.pods, Checkpoint: r.checkpoint(e.checkpoint), Runtime: r.runtime(e.runtime),
		Allocations: e.allocations}
}

// partResolver resolves the device IDs in evidence to parts of GPUs.
type partResolver struct {
	plan   []*allocator.Resource
	inv    *gpu.Inventory
	ledger allocator.Ledger
}

func (r partResolver) checkpoint(c *kubelet.Checkpoint) *allocator.Checkpoint {
	if c == nil {
		return nil
	}
	ours := &allocator.Checkpoint{Requested: c.Requested, Received: c.Received, Version: c.Version, Registered: map[allocator.Key]bool{}}
	for _, held := range c.Holders {
		if r.isAgentResource(held.Resource) || slices.ContainsFunc(held.CDI, isAgentDevice) {
			key := allocator.Key{Outlet: held.Resource, ID: held.Device}
			part := r.part(held.Device)
			if part.Share.Class == allocator.Ceiled && !slices.Contains(held.CDI, replicaDevice(key)) {
				part.Share.Class = allocator.PerhapsLimited // allocated under another config
			}
			ours.Held = append(ours.Held, allocator.Holding{Key: key, Part: part, Pod: held.PodUID})
		}
	}
	for resource, ids := range c.Registered {
		for _, id := range ids {
			if r.isAgentResource(resource) {
				ours.Registered[allocator.Key{Outlet: resource, ID: id}] = true
			}
		}
	}
	return ours
}

// isAgentDevice reports whether a CDI device has the kind that agents allocate.
func isAgentDevice(cdiName string) bool { return strings.HasPrefix(cdiName, cdi.AgentKind+"=") }

// isAgentResource reports whether an agent advertises the resource, or may have advertised it under another config.
func (r partResolver) isAgentResource(resource string) bool {
	if hasResource(r.plan, resource) || allocator.IsStandardResource(strings.TrimSuffix(resource, allocator.SharedSuffix)) {
		return true
	}
	for range r.ledger.Outlet(resource) {
		return true
	}
	return false
}

// part returns the part of a GPU that an ID refers to. For a replica of a device that the plan does not share, it
// returns the whole device, because the size of the share is unknown.
func (r partResolver) part(id string) allocator.Part {
	device := allocator.DeviceOf(id)
	part := r.device(device)
	if device == id || part.Extent == allocator.ExtentMonitor {
		return part
	}
	for _, resource := range r.plan {
		for _, d := range resource.Devices {
			if d.ID == device && d.Shared() {
				part.Share = allocator.Share{Class: d.Class, Count: len(d.Replicas)}
			}
		}
	}
	return part
}

// device returns the GPU, the MIG device or the monitor with an ID.
func (r partResolver) device(id string) allocator.Part {
	switch {
	case id == allocator.MonitorID:
		return allocator.Part{Extent: allocator.ExtentMonitor}
	case strings.HasPrefix(id, "GPU-"):
		return allocator.Part{GPU: id, Extent: allocator.ExtentWhole}
	}
	for e := range r.ledger.Entries() {
		if allocator.DeviceOf(e.ID) == id && e.Part.Extent != allocator.ExtentUnknown {
			return e.Part.Device()
		}
	}
	return allocator.MIGPart(r.inv, id)
}

func (r partResolver) runtime(c *containers) *allocator.Runtime {
	if c == nil {
		return nil
	}
	observed := &allocator.Runtime{Requested: c.requested, Received: c.received, Absent: c.absent, Sandboxes: c.Sandboxes}
	for _, d := range c.Devices {
		observed.Containers = append(observed.Containers, allocator.Container{Pod: d.Pod, Part: r.device(allocator.DeviceOfCDI(d.Device))})
	}
	return observed
}

// collector collects evidence from the kubelet, the container runtime and the API server.
type collector struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	claims  *claims // nil if DRA is disabled

	logged       string // the latest error, already logged
	loggedClaims string // the same for the list of claims

	latest                kubelet.Checkpoint // as last read
	runtimeSocket         string             // of the container runtime that has responded; empty before
	checkpoints, runtimes optionalSource
}

// optionalSource is a source that the agent ignores if it has never responded when firstResponseTimeout ends.
type optionalSource struct{ responded, skipped bool }

// tolerate returns err, or nil if the agent ignores the source.
func (c *collector) tolerate(s *optionalSource, consequence string, err error) error {
	if err == nil {
		s.responded = true
		return nil
	}
	if s.responded || time.Since(c.started) < firstResponseTimeout {
		return err
	}
	if !s.skipped {
		s.skipped = true
		c.log.Warn(consequence, "err", gpu.OneLine(err))
	}
	return nil
}

// watchEvidence delivers the requested evidence until ctx ends. After an error, it waits for a backoff and delivers the
// evidence without the failed sources.
func (a *Agent) watchEvidence(ctx context.Context, claims *claims, requests <-chan allocator.Todo, collected chan<- evidence) {
	c, wait := collector{cfg: a.cfg, log: a.log, started: time.Now(), claims: claims}, retryFirst
	for {
		var todo allocator.Todo
		select {
		case <-ctx.Done():
			return
		case todo = <-requests:
		}
		e, err := c.collect(ctx, todo)
		if ctx.Err() != nil {
			return
		}
		c.logFailure(err)
		if err == nil {
			wait = retryFirst
		} else {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, retryLimit)
		}
		select {
		case collected <- e:
		case <-ctx.Done():
			return
		}
	}
}

func (c *collector) logFailure(err error) {
	now := errString(err)
	if now != "" && now != c.logged {
		c.log.Warn("device holders unknown, keeping devices that may be held", "err", now)
	}
	c.logged = now
}

// collect queries the requested sources. Those of plugin resources are queried in the order of the steps that release an
// entry (see allocator/release.go).
func (c *collector) collect(ctx context.Context, todo allocator.Todo) (e evidence, err error) {
	var errs []error
	query := func(wanted bool, source func(context.Context) error) {
		if !wanted {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
		defer cancel()
		errs = append(errs, source(ctx))
	}
	query(todo.Allocatable, func(ctx context.Context) error { e.allocatable, err = c.allocatable(ctx); return err })
	query(todo.Pods, func(ctx context.Context) error { e.pods, err = c.pods(ctx); return err })
	query(todo.Checkpoint, func(ctx context.Context) error { e.checkpoint, err = c.checkpoint(ctx, todo.Resend != ""); return err })
	query(todo.Runtime, func(ctx context.Context) error { e.runtime, err = c.containers(ctx); return err })
	query(todo.Runtime, func(context.Context) error { return c.claims.readPods() })
	if todo.Allocations && c.claims != nil {
		ctx, cancel := context.WithTimeout(ctx, claimsTimeout)
		defer cancel()
		e.allocations = c.allocations(ctx)
	}
	return e, errors.Join(errs...)
}

func (c *collector) allocatable(ctx context.Context) (*allocator.Allocatable, error) {
	requested := time.Now()
	ids, err := kubelet.Allocatable(ctx, c.cfg.podResources())
	if err != nil {
		return nil, err
	}
	return &allocator.Allocatable{Requested: requested, Received: time.Now(), IDs: ids}, nil
}

func (c *collector) pods(ctx context.Context) (*allocator.PodResources, error) {
	pods := &allocator.PodResources{Requested: time.Now(), Held: map[allocator.Key]bool{}}
	held, err := kubelet.Holders(ctx, c.cfg.podResources())
	if err != nil {
		return nil, err
	}
	pods.Received = time.Now()
	for _, h := range held {
		pods.Held[allocator.Key{Outlet: h.Resource, ID: h.Device}] = true
	}
	return pods, nil
}

// checkpoint reads the kubelet's checkpoint. If a write is expected, it first waits up to writeTimeout for a
// checkpoint that is newer than the last one read.
func (c *collector) checkpoint(ctx context.Context, writeExpected bool) (*kubelet.Checkpoint, error) {
	if writeExpected {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if next, err := c.latest.After(ctx, c.cfg.devicePluginDir()); err == nil {
			c.latest, c.checkpoints.responded = next, true
			return &next, nil
		}
	}
	requested := time.Now()
	now, err := kubelet.ReadCheckpoint(c.cfg.devicePluginDir())
	if err := c.tolerate(&c.checkpoints, "kubelet checkpoint unreadable, assuming it is empty until rewritten", err); err != nil {
		return nil, err
	}
	if err != nil {
		now = kubelet.Checkpoint{Requested: requested, Received: time.Now()}
	}
	c.latest = now
	return &now, nil
}

// allocations lists the ResourceClaims. A failure is part of the response, because an error would delay the other
// sources.
func (c *collector) allocations(ctx context.Context) *allocator.Allocations {
	response := &allocator.Allocations{Requested: time.Now()}
	var err error
	response.Claims, err = c.claims.allocated(ctx)
	response.Absent, response.Received = err != nil, time.Now()
	if now := errString(err); now != "" && now != c.loggedClaims {
		c.log.Warn("ResourceClaims not listed, not releasing GPUs that may be allocated to claims", "err", now)
	}
	c.loggedClaims = errString(err)
	return response
}

func (c *collector) containers(ctx context.Context) (*containers, error) {
	response := &containers{requested: time.Now()}
	var err error
	response.Containers, err = runtime.ListContainers(ctx, c.cfg.Node, c.cfg.KubeletDir, c.runtimeSocket, cdi.AgentKind)
	if err != nil && ctx.Err() != nil { // a slow runtime is not absent: its containers may hold devices
		return nil, fmt.Errorf("listing containers with devices: %w", err)
	}
	if err := c.tolerate(&c.runtimes, "container runtime unavailable, tracking device holders through the kubelet only", err); err != nil {
		return nil, fmt.Errorf("listing containers with devices: %w", err)
	}
	c.runtimeSocket = cmp.Or(response.Socket, c.runtimeSocket)
	response.absent, response.received = err != nil, time.Now()
	return response, nil
}
