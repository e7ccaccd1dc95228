package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// moduleRetry is the time between two tries to load a module.
	moduleRetry = time.Minute
	// moduleTimeout is what loading one may take. Nothing can be given out
	// meanwhile, so the loop may wait for it.
	moduleTimeout = 30 * time.Second
)

// modules loads the driver's kernel modules, if it may.
type modules struct {
	allowed bool
	node    host.Root
	log     *slog.Logger
	tried   map[string]time.Time
}

// load tries to load a module, not too often, and says whether it did.
func (m *modules) load(ctx context.Context, name string) bool {
	if !m.allowed || time.Since(m.tried[name]) < moduleRetry {
		return false
	}
	m.tried[name] = time.Now()
	ctx, cancel := context.WithTimeout(ctx, moduleTimeout)
	defer cancel()
	if err := m.node.LoadModule(ctx, name); err != nil {
		m.log.Error("trying again in a minute", "err", err)
		return false
	}
	m.log.Info("kernel module loaded", "module", name)
	return true
}

// look finds what the node has for its spec, and loads the modules that are
// missing.
func (n *node) look(ctx context.Context) (parts cdi.Parts, err error) {
	for {
		parts, err = cdi.Inspect(n.agent.cfg.Node, n.reading.Driver, n.known, n.settings.CDI.Features)
		var missing *cdi.NotLoadedError
		if !errors.As(err, &missing) || !n.modules.load(ctx, missing.Module) {
			parts.Hook = n.settings.CDI.Hook
			return parts, err
		}
	}
}
