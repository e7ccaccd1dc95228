package agent

import (
	"context"
	"slices"
	"sync"
	"time"

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

// ready says whether the driver was looked at and everything is registered.
func (a *Agent) ready() bool {
	plugins := *a.view.plugins.Load()
	return len(plugins) > 0 && !slices.ContainsFunc(plugins, func(p *kubelet.Plugin) bool {
		return p.Registration().Since.IsZero()
	})
}

// status joins the parts of the view.
func (a *Agent) status(ctx context.Context) status.Node {
	now := *a.view.node.Load()
	now.Runtime = *a.view.runtime.Load()
	now.Config = *a.view.config.Load()
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
	// holdersWithin is what the kubelet may take to say who holds what. Who
	// asks for the status waits for it.
	holdersWithin = 500 * time.Millisecond
	// holdersFor is how long its answer is good.
	holdersFor = time.Second
)

// holders is who holds which device, by the kubelet's latest word. It is asked
// only when somebody wants to know.
type holders struct {
	mu    sync.Mutex
	asked time.Time
	held  []kubelet.Holder
	err   error
}

// ask returns what is known, at most holdersFor old where the kubelet answers.
func (h *holders) ask(ctx context.Context, socket string) ([]kubelet.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < holdersFor {
		return h.held, h.err
	}
	ctx, cancel := context.WithTimeout(ctx, holdersWithin)
	defer cancel()
	held, err := kubelet.Held(ctx, socket)
	if err == nil {
		h.held = held
	}
	h.asked, h.err = time.Now(), err
	return h.held, h.err
}
