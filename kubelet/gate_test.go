package kubelet

import (
	"fmt"
	"slices"
	"sync"
)

// gate is a Gate that records its calls. It grants everything unless refuse was called.
type gate struct {
	mu    sync.Mutex
	err   error
	calls []string
}

func gateOf(p *Plugin) *gate { return p.cfg.Gate.(*gate) }

func (g *gate) Allocate(resource string, ids []string, _ bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, fmt.Sprint(resource, ids))
	return g.err
}

func (g *gate) refuse(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

func (g *gate) recorded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
}
