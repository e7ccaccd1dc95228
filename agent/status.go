package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/status"
)

// server returns the HTTP server. The liveness probe passes while the loop receives from liveness.
func (a *Agent) server(liveness chan<- struct{}) *status.Server {
	return &status.Server{
		Address: a.cfg.Listen,
		Node:    a.status,
		Metrics: a.metrics,
		Ready:   a.ready,
		Alive: func(ctx context.Context) error {
			select {
			case liveness <- struct{}{}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

// ready returns an error while no config is in effect, no device list is advertised, or a resource or the DRA driver is
// not registered. An agent that waits for its predecessor is ready, so that a rollout can proceed.
func (a *Agent) ready() error {
	if a.predecessor.Load() != nil {
		return nil
	}
	s := a.latest.Load()
	if s.config.loaded.IsZero() {
		return errors.New(cmp.Or(s.config.problem(), "config not loaded yet"))
	}
	if s.offers == nil {
		return errors.New("no devices advertised yet")
	}
	for _, p := range s.plugins {
		if r := p.Registration(); r.Since.IsZero() {
			return fmt.Errorf("%s is not registered with the kubelet: %s", p.Resource(), r.Error)
		}
	}
	if d := s.claims.status(); d != nil && d.Registered.IsZero() {
		return fmt.Errorf("DRA driver %s is not registered with the kubelet: %s", d.Driver, d.Error)
	}
	return nil
}

// status returns the status of the latest snapshot, with the telemetry and the device holders.
func (a *Agent) status(ctx context.Context) status.Node {
	s := a.latest.Load()
	now := s.status()
	now.Name, now.Version = a.cfg.NodeName, a.cfg.Version
	now.Config.Path, now.Spec.Path = a.cfg.ConfigFile, a.spec.Path
	now.Runtime = a.runtimeStatus(s.runtime)
	now.Containers = containersStatus(s.audited, s.running.err)
	if waiting := a.predecessor.Load(); waiting != nil {
		now.Driver.Error = *waiting
	}
	now.DRA = s.claims.status()
	now.NRI = a.nriStatus()
	s.measure(now.GPUs, *a.telemetry.Load())
	s.claims.measure(now.Devices, &a.used)
	held, err := a.holders.list(ctx)
	now.Kubelet.PodsError = errString(err)
	for i, d := range now.Devices {
		now.Devices[i].AllocatedTo, now.Devices[i].ReplicasAllocated = holdersOf(d, held)
	}
	replicas := replicaShares{podUIDs(s.running.containers), held, &a.used}
	replicas.set(now.Devices)
	setContainers(now.Devices, held)
	return now
}

// status returns the part of the status that the snapshot contains.
func (s *snapshot) status() status.Node {
	now := status.Node{
		Config: status.Config{Loaded: s.config.loaded, Error: s.config.problem(), LabelsError: s.labelsProblem()},
		Driver: status.Driver{Driver: s.known.Driver, Error: errString(s.plan.driverErr)},
		Spec:   status.Spec{Devices: len(s.plan.parts.GPUs), Error: errString(s.plan.specErr)},

		CordonsError: errString(s.cordons.problem),
	}
	switch {
	case s.driver == nil:
		now.Driver.Error = "not read yet"
	case s.driver.Err == nil:
		now.Driver.Root = s.driver.Driver.String()
		now.Unreadable = s.driver.Inventory.Unreadable
	}
	for _, g := range s.plan.inventory.GPUs {
		g.Links = nil // shown by gpucdi list
		now.GPUs = append(now.GPUs, s.gpuStatus(g))
	}
	for _, a := range allocator.Assign(s.plan.inventory, s.config.Policy()) {
		if a.Rule.Exclude {
			now.Excluded = append(now.Excluded, status.Excluded{ID: a.Device.ID, Index: a.Device.Index, Rule: fmt.Sprintf("resources[%d]", a.Position)})
		}
	}
	for _, r := range s.offers {
		name := s.outletName(r.Name)
		if !r.Sliced() {
			now.Kubelet.Resources = append(now.Kubelet.Resources, s.resourceStatus(name))
		}
		for _, d := range r.Devices {
			if d.State != allocator.StateReleased { // released entries concern only the kubelet
				device := deviceStatus(name, d)
				device.Sharing = s.claims.sharing(d)
				now.Devices = append(now.Devices, device)
			}
		}
	}
	return now
}

// labelsProblem returns why sections of the config that select by label are not applied or may be stale; empty
// without a problem or such sections.
func (s *snapshot) labelsProblem() string {
	switch {
	case !s.config.byLabels || s.labels.err == nil:
		return ""
	case s.labels.value == nil:
		return "sections that select by label are not applied: " + gpu.OneLine(s.labels.err)
	}
	return "sections that select by label may be stale: " + gpu.OneLine(s.labels.err)
}

// resourceStatus returns the registration of a resource.
func (s *snapshot) resourceStatus(name string) status.Resource {
	i := slices.IndexFunc(s.plugins, func(p *kubelet.Plugin) bool { return p.Resource() == name })
	r := s.plugins[i].Registration()
	return status.Resource{Name: name, Registered: r.Since, Error: r.Error}
}

// gpuStatus returns a GPU with one fault: its own, otherwise a fault of one of its devices, otherwise the fault
// of the config.
func (s *snapshot) gpuStatus(g gpu.GPU) status.GPU {
	for _, r := range s.offers {
		for _, d := range r.Devices {
			if d.GPU == g.UUID && (g.Fault.None() || g.Fault.Same(d.Fault)) {
				g.Fault = d.Fault // has Since
			}
		}
	}
	g.Fault = cmp.Or(g.Fault, s.config.fault)
	return status.GPU{GPU: g}
}

// deviceStatus returns a device of a resource. A device that is unavailable because of a planned change has a State
// instead of a fault.
func deviceStatus(resource string, d allocator.Device) status.Device {
	s := status.Device{ID: d.ID, Index: d.Index, Resource: resource, GPU: d.GPU, Features: d.Features.Names(), Replicas: d.Replicas, Fault: d.Fault}
	isolation := d.Isolation()
	s.MemoryIsolation, s.ComputeIsolation = string(isolation.Memory), string(isolation.Compute)
	if d.Fault.None() && !d.Healthy() {
		s.State, s.Since, s.Reason, s.Awaits = status.Waiting, d.Since, d.Reason, d.Awaits
		if d.State == allocator.StateDraining {
			s.State = status.Draining
		}
	}
	return s
}

// knownXIDs returns the XIDs that metrics count individually.
func knownXIDs() (codes []int) {
	for _, x := range health.Catalog() {
		codes = append(codes, x.Code)
	}
	return codes
}

// holdersOf returns the containers that hold a device, and the number of its IDs that they hold. A container with
// several replicas is returned once.
func holdersOf(d status.Device, held []kubelet.Holder) (holders []status.Holder, allocated int) {
	ids := map[string]bool{}
	for _, id := range d.IDs() {
		ids[id] = false
	}
	for _, h := range held {
		holder := status.Holder{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container, Claim: h.Claim}
		if h.Claim != "" {
			h.Device, _ = dra.DeviceID(h.Device)
		}
		counted, ours := ids[h.Device]
		if h.Resource != d.Resource || !ours {
			continue
		}
		if !counted {
			ids[h.Device] = true
			allocated++
		}
		if !slices.Contains(holders, holder) {
			holders = append(holders, holder)
		}
	}
	return holders, allocated
}

// podsOf returns the pods that hold a device, or another device on the same hardware, through the device plugin, as
// "namespace/name". If the kubelet does not respond within holdersTimeout, it uses the kubelet's last response.
func (a *Agent) podsOf(ctx context.Context, id string) (pods []string) {
	held, _ := a.holders.list(ctx)
	s := a.latest.Load()
	onGPU := s.gpuOf(id)
	for _, r := range s.offers {
		for _, d := range r.Devices {
			if r.Sliced() || d.ID != id && d.ID != onGPU && d.GPU != id {
				continue
			}
			holders, _ := holdersOf(deviceStatus(r.Name, d), held)
			for _, h := range holders {
				pods = append(pods, h.Namespace+"/"+h.Pod)
			}
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// gpuOf returns the UUID of the GPU of a device; empty if the device is unknown.
func (s *snapshot) gpuOf(id string) string {
	for _, r := range s.offers {
		for _, d := range r.Devices {
			if d.ID == id {
				return d.GPU
			}
		}
	}
	return ""
}

const (
	// holdersTimeout bounds the pod resources request, which delays the response to a status request.
	holdersTimeout = 500 * time.Millisecond
	// holdersTTL is how long a response or an error is cached.
	holdersTTL = time.Second
)

// holders caches which containers hold which devices. It queries the kubelet only on demand.
type holders struct {
	mu      sync.Mutex
	kubelet kubelet.PodResources
	timeout time.Duration // 0: holdersTimeout
	queried time.Time
	held    []kubelet.Holder
	err     error
}

// list returns the holders, at most holdersTTL old while the kubelet responds. The response is shared by all
// callers, so canceling ctx does not cancel the request.
func (h *holders) list(ctx context.Context) ([]kubelet.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.queried) < holdersTTL {
		return h.held, h.err
	}
	return h.query(context.WithoutCancel(ctx))
}

// refresh queries the kubelet. Unlike list it returns nothing with an error.
func (h *holders) refresh(ctx context.Context) ([]kubelet.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held, err := h.query(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return held, nil
}

// query queries the kubelet. The caller must hold h.mu.
func (h *holders) query(ctx context.Context) ([]kubelet.Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(h.timeout, holdersTimeout))
	defer cancel()
	held, err := h.kubelet.Holders(ctx)
	if err == nil {
		h.held = held
	}
	h.queried, h.err = time.Now(), err
	return h.held, h.err
}

// close closes the connection to the kubelet after the last request.
func (h *holders) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kubelet.Close()
}

// errString returns err on one line; empty for nil.
func errString(err error) string {
	if err == nil {
		return ""
	}
	return gpu.OneLine(err)
}
