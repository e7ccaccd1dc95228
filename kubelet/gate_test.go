package kubelet

import (
	"fmt"
	"slices"
	"sync"
)

// gate is a Gate that grants everything unless it is told to refuse. It records the calls.
type gate struct {
	mu      sync.Mutex
	refusal error
	asked   []string
}

func gateOf(p *Plugin) *gate { return p.cfg.Gate.(*gate) }

func (g *gate) Allocate(resource string, ids []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, fmt.Sprint(resource, ids))
	return g.refusal
}

func (g *gate) refuse(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusal = err
}

func (g *gate) requests() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.asked)
}
