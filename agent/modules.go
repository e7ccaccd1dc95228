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
	// moduleTimeout bounds modprobe. The reconcile loop waits for it: without the module no GPU can be advertised.
	moduleTimeout = 30 * time.Second
	// moduleKill bounds the wait for a killed modprobe, which does not exit while it hangs in the kernel.
	moduleKill = 3 * time.Second
)

// modules loads the driver's kernel modules, if allowed.
type modules struct {
	allowed bool
	node    host.Root
	log     *slog.Logger
	tried   map[string]time.Time
	stuck   chan error // result of a modprobe that could not be killed; nil: none
	hanging string     // its module
}

// load loads a module unless the last attempt was within moduleRetry, and reports success.
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

// run runs modprobe. If it hangs in the kernel and cannot be killed, run stops waiting for it, and starts no other
// until it has exited.
func (m *modules) run(ctx context.Context, name string) error {
	if m.stuck != nil && len(m.stuck) == 0 {
		return m.hangs(name)
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
		m.stuck, m.hanging = result, name
		return m.hangs(name)
	}
}

// hangs returns the error of loading a module while modprobe hangs, perhaps with another module.
func (m *modules) hangs(name string) error {
	return fmt.Errorf("loading the kernel module %s: modprobe hangs in the kernel while it loads %s; find the cause in the kernel log, and reboot the node", name, m.hanging)
}
