package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Config says where the driver is looked for, and how.
type Config struct {
	Node       host.Root
	DriverRoot string // the node's path of the only root to look at; empty: the known places
	Library    string // the node's path of NVML; empty: found in the driver root

	// Interval is the time between two probes, and between two looks for a
	// driver that is not there.
	Interval time.Duration

	// CallWithin is how long a call into the driver may take.
	CallWithin time.Duration

	// Worker is the program that calls into the driver: cmd/gpucdi-nvml.
	Worker string
}

// source keeps a worker at the driver.
type source struct {
	cfg    Config
	reload <-chan Config
	yield  func(Report)

	meanwhile func(host.DriverRoot) // nil: nothing; see Read

	latest  *gpu.Inventory // as last told, the doubted GPUs included
	doubted map[int]string // why, by the index of a GPU that held a call up
}

// Run yields what the driver says, until ctx ends: a Reading at once and
// whenever it has changed, and in between what happens to the GPUs. It follows
// the driver through removal, upgrade and failure, and looks anew whenever
// reload delivers a config, which it uses from then on. It never waits for a
// call into the driver.
func Run(ctx context.Context, cfg Config, reload <-chan Config, yield func(Report)) {
	s := source{cfg: cfg, reload: reload, yield: yield}
	s.run(ctx)
}

func (s *source) run(ctx context.Context) {
	s.doubted = map[int]string{}
	for ctx.Err() == nil {
		if err := s.follow(ctx); err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case s.cfg = <-s.reload:
			s.doubted = map[int]string{}
		case <-time.After(jitter(s.cfg.Interval)):
		}
	}
}

// jitter adds up to a quarter, so that agents that lost one thing do not all
// come back at once.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// follow finds the driver and lets a worker hold it until what was found has
// changed. An error is yielded before it is returned.
func (s *source) follow(ctx context.Context) error {
	root, err := host.FindDriver(s.cfg.Node, s.cfg.DriverRoot, s.cfg.Library)
	if err != nil {
		s.yield(Reading{Err: err})
		return err
	}
	p, err := s.start(ctx, root)
	if err != nil {
		s.yield(Reading{Err: err})
		return err
	}
	if s.meanwhile != nil {
		s.meanwhile(root)
	}
	if err = s.hear(ctx, root, p); err != nil && ctx.Err() == nil {
		s.yield(Reading{Err: err})
	}
	p.kill()
	defer p.marker.file.Close()
	// Where one worker is stuck inside the driver, a second one would only
	// join it.
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	return err
}

// hear passes on what a worker says until the driver is another or the worker
// fails.
func (s *source) hear(ctx context.Context, root host.DriverRoot, p *process) error {
	identity := driverIdentity(s.cfg.Node, root)
	overdue := time.NewTimer(s.cfg.CallWithin)
	defer overdue.Stop()
	marked := p.marker.get()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s.cfg = <-s.reload:
			s.doubted = map[int]string{}
			return nil
		case <-overdue.C:
			if now := p.marker.get(); now != marked { // it is slow, not stuck
				marked = now
				overdue.Reset(s.cfg.CallWithin)
				continue
			}
			return s.trouble(marked.Index, fmt.Errorf("unresponsive: a call into the driver has not come back within %s", s.cfg.CallWithin))
		case m, open := <-p.messages:
			if !open {
				err := <-p.ended
				p.ended <- err
				return s.trouble(p.marker.get().Index, err)
			}
			marked = p.marker.get()
			overdue.Reset(s.cfg.CallWithin + m.Waits)
			if m.Failed != "" {
				return errors.New(m.Failed)
			}
			// With each round of probes, so that the agent is woken but once.
			// What a worker says of a driver that has changed is worth nothing.
			if m.Waits > 0 && driverIdentity(s.cfg.Node, root) != identity {
				s.doubted = map[int]string{} // another GPU may have the index now
				return nil
			}
			s.pass(m, root)
		}
	}
}

// pass yields the reports in a message.
func (s *source) pass(m Message, root host.DriverRoot) {
	switch {
	case m.Inventory != nil:
		s.latest = s.complete(m.Inventory)
		s.yield(Reading{Inventory: s.latest, Driver: root, Probes: m.Probes})
	case m.Probes != nil:
		s.yield(m.Probes)
	}
	if m.Telemetry != nil {
		s.yield(m.Telemetry)
	}
	if m.XID != nil {
		s.yield(*m.XID)
	}
}

// complete adds the doubted GPUs to an inventory that leaves them out, as they
// were known before, if they were. One that is in it is doubted no more.
func (s *source) complete(told *gpu.Inventory) *gpu.Inventory {
	whole := *told
	for index, reason := range s.doubted {
		at := func(g gpu.GPU) bool { return g.Index == index }
		if slices.ContainsFunc(told.GPUs, at) {
			delete(s.doubted, index)
			continue
		}
		if s.latest == nil || !slices.ContainsFunc(s.latest.GPUs, at) {
			whole.Unreadable = append(whole.Unreadable, gpu.Unreadable{Index: index, Fault: reason})
			continue
		}
		g := s.latest.GPUs[slices.IndexFunc(s.latest.GPUs, at)]
		g.Fault = reason
		whole.GPUs = append(whole.GPUs, g)
	}
	slices.SortFunc(whole.GPUs, func(a, b gpu.GPU) int { return a.Index - b.Index })
	slices.SortFunc(whole.Unreadable, func(a, b gpu.Unreadable) int { return a.Index - b.Index })
	return &whole
}

// trouble blames the GPU that was asked, if it was one, and doubts it from now
// on; then the other GPUs are not concerned and there is no error.
func (s *source) trouble(asking int, err error) error {
	if asking == Nobody {
		s.yield(Trouble{Reason: err.Error()})
		return err
	}
	s.doubted[asking] = err.Error()
	if s.latest == nil {
		return nil
	}
	if i := slices.IndexFunc(s.latest.GPUs, func(g gpu.GPU) bool { return g.Index == asking }); i >= 0 {
		s.yield(Trouble{GPU: s.latest.GPUs[i].UUID, Reason: err.Error()})
	}
	return nil
}

// driverIdentity tells one state of the kernel's driver from another: its
// version, its GPUs, and the library that goes with it. A worker knows only
// the one that it was started with.
func driverIdentity(node host.Root, root host.DriverRoot) string {
	var parts []string
	// Packages replace a library and never write into it.
	var library unix.Stat_t
	if err := unix.Stat(root.LocalPath(root.NVML), &library); err == nil {
		parts = append(parts, root.LocalPath(root.NVML), fmt.Sprint(library.Dev, library.Ino))
	}
	if version, err := node.ReadFile("/proc/driver/nvidia/version"); err == nil {
		parts = append(parts, string(version))
	}
	if gpus, err := node.ReadDir("/proc/driver/nvidia/gpus"); err == nil {
		for _, g := range gpus {
			parts = append(parts, path.Base(g.Name()))
		}
	}
	return strings.Join(parts, "\n")
}
