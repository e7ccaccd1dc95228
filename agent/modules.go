package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// moduleRetry is the time between two attempts to load a module.
	moduleRetry = time.Minute
	// moduleTimeout is how long loading a module may take. No GPU can be advertised meanwhile, so
	// the reconcile loop waits.
	moduleTimeout = 30 * time.Second
	// moduleKill is how long a modprobe that was killed may take to end. One that hangs in the
	// kernel does not.
	moduleKill = 3 * time.Second
)

// modules loads the driver's kernel modules, if allowed.
type modules struct {
	allowed bool
	node    host.Root
	log     *slog.Logger
	tried   map[string]time.Time
	stuck   chan error // result of a modprobe that could not be killed; nil: there is none
}

// load attempts to load a module unless the last attempt was too recent, and reports success.
func (m *modules) load(ctx context.Context, name string) bool {
	if !m.allowed || time.Since(m.tried[name]) < moduleRetry {
		return false
	}
	m.tried[name] = time.Now()
	if err := m.run(ctx, name); err != nil {
		m.log.Error("kernel module load failed, will retry", "err", err)
		return false
	}
	m.log.Info("kernel module loaded", "module", name)
	return true
}

// run runs modprobe. One that hangs in the kernel, where nothing can kill it, delays neither the
// reconcile loop nor the end of the agent, and no second one joins it.
func (m *modules) run(ctx context.Context, name string) error {
	hangs := fmt.Errorf("loading the kernel module %s: modprobe hangs in the kernel; find the cause in the kernel log, and reboot the node", name)
	if m.stuck != nil && len(m.stuck) == 0 {
		return hangs
	}
	m.stuck = nil
	ctx, cancel := context.WithTimeout(ctx, moduleTimeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- m.node.LoadModule(ctx, name) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	case <-time.After(moduleKill):
		m.stuck = result
		return hangs
	}
}
