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
	if a.view.predecessor.Load() != nil {
		return nil
	}
	if cfg := a.view.config.Load(); cfg.Loaded.IsZero() {
		return errors.New(cmp.Or(cfg.Trouble, "the config is not read yet"))
	}
	plugins := *a.view.plugins.Load()
	if len(plugins) == 0 {
		return errors.New("the driver is not read yet")
	}
	for _, p := range plugins {
		if r := p.Registration(); r.Since.IsZero() {
			return fmt.Errorf("%s is not registered with the kubelet: %s", p.Resource(), r.Trouble)
		}
	}
	return nil
}

// status joins the parts of the view.
func (a *Agent) status(ctx context.Context) status.Node {
	now := *a.view.node.Load()
	if why := a.view.predecessor.Load(); why != nil {
		now.Driver.Trouble = *why
	}
	now.Runtime = *a.view.runtime.Load()
	now.Config = *a.view.config.Load()
	if a.view.byLabels.Load() {
		now.Config.LabelsTrouble = *a.view.labels.Load()
	}
	for _, p := range *a.view.plugins.Load() {
		r := p.Registration()
		now.Kubelet.Resources = append(now.Kubelet.Resources, status.Resource{Name: p.Resource(), Registered: r.Since, Trouble: r.Trouble})
	}
	telemetry := *a.view.telemetry.Load()
	now.GPUs = slices.Clone(now.GPUs)
	for i, g := range now.GPUs {
		now.GPUs[i].Telemetry = telemetry[g.UUID]
	}
	held, err := a.view.holders.ask(ctx, a.podResources())
	now.Kubelet.PodsTrouble = trouble(err)
	now.Devices = slices.Clone(now.Devices)
	for i, d := range now.Devices {
		now.Devices[i].HeldBy = holdersOf(d, held)
	}
	return now
}

// gpuStatus is a GPU with its fault, or else that of a device of it, or of all.
func (n *node) gpuStatus(g gpu.GPU) status.GPU {
	for _, r := range n.listed {
		for _, d := range r.Devices {
			if d.GPU == g.UUID && (g.Fault.None() || g.Fault.Same(d.Fault)) {
				g.Fault = d.Fault // with its beginning
			}
		}
	}
	g.Fault = cmp.Or(g.Fault, n.unconfigured)
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
	mu    sync.Mutex
	asked time.Time
	held  []kubelet.Holder
	err   error
}

// ask returns the holders, at most holdersFor old while the kubelet answers. All callers
// share the answer, so none of them can end the question: ctx has only its values.
func (h *holders) ask(ctx context.Context, socket string) ([]kubelet.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < holdersFor {
		return h.held, h.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdersWithin)
	defer cancel()
	held, err := kubelet.Held(ctx, socket)
	if err == nil {
		h.held = held
	}
	h.asked, h.err = time.Now(), err
	return h.held, h.err
}
