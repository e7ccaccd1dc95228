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
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/status"
)

// server answers for the agent over HTTP. alive reaches the loop.
func (a *Agent) server(alive chan<- struct{}) *status.Server {
	return &status.Server{
		Address: a.cfg.Listen,
		Node:    a.status,
		Metrics: a.metrics,
		Ready:   a.ready,
		Alive: func(ctx context.Context) error {
			select {
			case alive <- struct{}{}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

// ready returns why the agent does not advertise what it should: no config is in effect, the
// driver was not read yet, or a resource is not registered. One that waits for another agent's end is as
// ready as it can be.
func (a *Agent) ready() error {
	if a.predecessor.Load() != nil {
		return nil
	}
	s := a.latest.Load()
	if s.config.loaded.IsZero() {
		return errors.New(cmp.Or(s.config.trouble(), "the config is not read yet"))
	}
	if s.offers == nil {
		return errors.New("the driver is not read yet")
	}
	for _, p := range s.plugins {
		if r := p.Registration(); r.Since.IsZero() {
			return fmt.Errorf("%s is not registered with the kubelet: %s", p.Resource(), r.Trouble)
		}
	}
	return nil
}

// status is the latest snapshot, with what others than the loop found out.
func (a *Agent) status(ctx context.Context) status.Node {
	s := a.latest.Load()
	now := s.status()
	now.Name, now.Version = a.cfg.NodeName, a.cfg.Version
	now.Config.Path, now.Spec.Path = a.cfg.ConfigFile, a.spec.Path
	now.Runtime = a.runtimeStatus(s.runtime)
	if why := a.predecessor.Load(); why != nil {
		now.Driver.Trouble = *why
	}
	telemetry := *a.telemetry.Load()
	for i, g := range now.GPUs {
		now.GPUs[i].Telemetry = telemetry[g.UUID]
	}
	held, err := a.holders.ask(ctx)
	now.Kubelet.PodsTrouble = trouble(err)
	for i, d := range now.Devices {
		now.Devices[i].HeldBy = holdersOf(d, held)
	}
	return now
}

// status is the snapshot as it is served.
func (s *snapshot) status() status.Node {
	now := status.Node{
		Config: status.Config{Loaded: s.config.loaded, Trouble: s.config.trouble(), LabelsTrouble: s.labelsTrouble()},
		Driver: status.Driver{Driver: s.known.Driver, Trouble: trouble(s.plan.driverErr)},
		Spec:   status.Spec{Devices: len(s.plan.parts.GPUs), Trouble: trouble(s.plan.specErr)},
	}
	switch {
	case s.reading == nil:
		now.Driver.Trouble = "not read yet"
	case s.reading.Err == nil:
		now.Driver.Root = s.reading.Driver.String()
		now.Unreadable = s.reading.Inventory.Unreadable
	}
	for _, g := range s.plan.inventory.GPUs {
		g.Links = nil // gpucdi list shows them
		now.GPUs = append(now.GPUs, s.gpuStatus(g))
	}
	for _, r := range s.offers {
		now.Kubelet.Resources = append(now.Kubelet.Resources, s.resourceStatus(r.Name))
		for _, d := range r.Devices {
			if d.State != allocator.StateReleased { // only the kubelet needs it
				now.Devices = append(now.Devices, deviceStatus(r.Name, d))
			}
		}
	}
	return now
}

// labelsTrouble is why sections of the config that select by label are not applied, or may be out of
// date; empty where the file has none.
func (s *snapshot) labelsTrouble() string {
	switch {
	case !s.config.byLabels || s.labels.err == nil:
		return ""
	case s.labels.value == nil:
		return "sections that select by label are not applied: " + gpu.OneLine(s.labels.err)
	}
	return "sections that select by label may be out of date: " + gpu.OneLine(s.labels.err)
}

// resourceStatus is the registration of a resource, which its plugin knows.
func (s *snapshot) resourceStatus(name string) status.Resource {
	i := slices.IndexFunc(s.plugins, func(p *kubelet.Plugin) bool { return p.Resource() == name })
	r := s.plugins[i].Registration()
	return status.Resource{Name: name, Registered: r.Since, Trouble: r.Trouble}
}

// gpuStatus is a GPU with its fault, or else that of a device of it, or of all.
func (s *snapshot) gpuStatus(g gpu.GPU) status.GPU {
	for _, r := range s.offers {
		for _, d := range r.Devices {
			if d.GPU == g.UUID && (g.Fault.None() || g.Fault.Same(d.Fault)) {
				g.Fault = d.Fault // with its beginning
			}
		}
	}
	g.Fault = cmp.Or(g.Fault, s.config.fault)
	return status.GPU{GPU: g}
}

// deviceStatus is a device of a resource. One that is unavailable because of a planned change has no
// fault but its state.
func deviceStatus(resource string, d allocator.Device) status.Device {
	s := status.Device{ID: d.ID, Index: d.Index, Resource: resource, GPU: d.GPU, Replicas: d.Replicas, Fault: d.Fault}
	if d.Fault.None() && !d.Healthy() {
		s.State, s.Since, s.Reason, s.Awaits = string(d.State), d.Since, d.Why, d.Awaits
	}
	return s
}

// knownXIDs are the codes that metrics count each for itself.
func knownXIDs() (codes []int) {
	for _, x := range health.Known() {
		codes = append(codes, x.Code)
	}
	return codes
}

// holdersOf are the containers that hold a device, each once, however many of its
// replicas it has.
func holdersOf(d status.Device, held []kubelet.Holder) (holders []status.Holder) {
	ids := d.IDs()
	for _, h := range held {
		holder := status.Holder{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container}
		if h.Resource == d.Resource && slices.Contains(ids, h.Device) && !slices.Contains(holders, holder) {
			holders = append(holders, holder)
		}
	}
	return holders
}

const (
	// holdersWithin bounds the kubelet's answer, which a request for the status waits for.
	holdersWithin = 500 * time.Millisecond
	// holdersFor is how long an answer or an error is reused.
	holdersFor = time.Second
)

// holders caches which containers hold which devices. The kubelet is asked only for a
// request.
type holders struct {
	mu      sync.Mutex
	kubelet kubelet.PodResources
	asked   time.Time
	held    []kubelet.Holder
	err     error
}

// ask returns the holders, at most holdersFor old while the kubelet answers. All callers
// share the answer, so none of them can end the question: ctx has only its values.
func (h *holders) ask(ctx context.Context) ([]kubelet.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < holdersFor {
		return h.held, h.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdersWithin)
	defer cancel()
	held, err := h.kubelet.Held(ctx)
	if err == nil {
		h.held = held
	}
	h.asked, h.err = time.Now(), err
	return h.held, h.err
}

// close ends the connection to the kubelet, once nothing is asked any more.
func (h *holders) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kubelet.Close()
}

// trouble is an error as people read it; empty when there is none.
func trouble(err error) string {
	if err == nil {
		return ""
	}
	return gpu.OneLine(err)
}
