package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Config is how the driver is found and read.
type Config struct {
	Node       host.Root
	DriverRoot string // the node's path of the driver root; empty: the known places are tried
	Library    string // the node's path of NVML; empty: found in the driver root

	// Interval is the time between two probes, and between two attempts to find a driver.
	Interval time.Duration

	// CallWithin is how long a step, which is a few calls into the driver, may take.
	CallWithin time.Duration

	// Worker is the path of the driver worker: cmd/gpucdi-nvml.
	Worker string
}

const (
	// endTimeout is how long a worker that was killed may take to end.
	endTimeout = 5 * time.Second
	// failedLimit bounds what a worker reports as the failure of the driver.
	failedLimit = 1024
)

// source keeps a worker at the driver.
type source struct {
	cfg    Config
	reload <-chan Config
	yield  func(Report)

	latest  *gpu.Inventory // as last reported, the doubted GPUs included
	doubted map[int]doubt  // by index
	held    []int          // see hung
	xids    xids
	stuck   *process // a worker that was killed and has not ended; nil: none
}

// Run reports the state of the driver until ctx ends: a Reading at once and whenever it has changed,
// and in between what happens to the GPUs. It follows the driver through removal, upgrade and
// failure, and reads it again whenever reload delivers a config, which holds from then on. It never
// waits for a call into the driver.
func Run(ctx context.Context, cfg Config, reload <-chan Config, yield func(Report)) {
	s := source{cfg: cfg, reload: reload, yield: yield}
	s.run(ctx)
}

func (s *source) run(ctx context.Context) {
	s.forgive()
	for ctx.Err() == nil {
		if err := s.follow(ctx); err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case s.cfg = <-s.reload:
			s.forgive()
		case <-time.After(jitter(s.cfg.Interval)):
		}
	}
}

// forgive drops all doubts.
func (s *source) forgive() { s.doubted, s.held = map[int]doubt{}, nil }

// jitter adds up to a quarter, so that agents which lost the same thing do not all come back at
// once.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// follow finds the driver and lets a worker read it until what was found has changed. An error is
// reported before it is returned.
func (s *source) follow(ctx context.Context) error {
	root, err := host.FindDriver(s.cfg.Node, s.cfg.DriverRoot, s.cfg.Library)
	if err != nil {
		s.yield(Reading{Err: err})
		return err
	}
	identity := driverIdentity(s.cfg.Node, root) // before the worker loads the library
	p, err := s.start(ctx, root)
	if err != nil {
		s.yield(Reading{Err: err})
		return err
	}
	defer p.marker.file.Close()
	if err = s.supervise(ctx, root, identity, p); err != nil && ctx.Err() == nil {
		s.yield(Reading{Err: err})
	}
	p.kill()
	defer p.drop()
	return errors.Join(err, s.bury(ctx, p))
}

func (s *source) start(ctx context.Context, root host.DriverRoot) (*process, error) {
	return start(ctx, s.cfg.Worker, append(s.doubts(),
		"--host-root", s.cfg.Node.LocalPath("/"),
		"--library", root.LocalPath(root.NVML),
		"--interval", s.cfg.Interval.String(),
	))
}

// bury waits for the end of a worker that was killed, and passes on the XIDs that it has reported. A
// worker that hangs in the kernel does not end; the next may get through to the other GPUs all the
// same. When that hangs too, there is no third one.
func (s *source) bury(ctx context.Context, p *process) error {
	defer s.repeatXIDs()
	messages, late := p.messages, time.After(endTimeout)
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ended:
			return nil
		case m, open := <-messages:
			if !open {
				messages = nil
			}
			s.reportXID(m)
		case <-late:
			waiting = false
		}
	}
	p.drop()
	if s.stuck == nil {
		s.stuck = p
		return nil
	}
	err := errors.New("driver workers hang in the kernel and cannot be killed; find the cause in the kernel log, and reboot the node")
	s.yield(Reading{Err: err})
	select {
	case <-ctx.Done():
	case <-p.ended:
	case <-s.stuck.ended:
		s.stuck = p
	}
	return err
}

// released is closed when a worker that hung in the kernel has ended.
func (s *source) released() <-chan struct{} {
	if s.stuck == nil {
		return nil
	}
	return s.stuck.ended
}

// supervise passes on the reports of a worker until the driver has changed or the worker fails.
func (s *source) supervise(ctx context.Context, root host.DriverRoot, identity string, p *process) error {
	p.due = Clock() + s.cfg.CallWithin
	timer := time.NewTimer(s.cfg.CallWithin)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s.cfg = <-s.reload:
			s.forgive()
			return nil
		case <-s.released():
			s.stuck = nil
			return nil
		case <-timer.C:
			blamed, next := s.check(p)
			if len(blamed) > 0 {
				s.acquit(p)
				return s.blame(blamed, fmt.Errorf("unresponsive: a call into the driver has not come back within %s", s.cfg.CallWithin))
			}
			timer.Reset(next)
		case m, open := <-p.messages:
			if !open {
				return s.autopsy(ctx, p)
			}
			p.quiet = false
			if m.Failed != "" {
				return errors.New(host.Printable(m.Failed, failedLimit))
			}
			// With each round of probes, so that the agent is woken but once. What a worker reports
			// of a driver that has changed is worth nothing.
			if m.Round && driverIdentity(s.cfg.Node, root) != identity {
				s.forgive() // another GPU may have the index now
				return nil
			}
			p.probed = p.probed || m.Round
			s.report(m, root)
		}
	}
}

// autopsy finds the GPUs that are to blame for the end of a worker. Nobody is if it was killed, as for
// its memory, unless none of the GPUs was probed by it: then no worker may ever get that far.
func (s *source) autopsy(ctx context.Context, p *process) error {
	s.acquit(p)
	why := errors.New("driver worker failed and cannot be killed")
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(endTimeout):
	case <-p.ended:
		if p.killed && p.probed {
			return nil
		}
		why = p.err
	}
	return s.blame(crashed(p.marker.steps(), Clock()), why)
}

// report yields what a message holds.
func (s *source) report(m Message, root host.DriverRoot) {
	s.reportXID(m)
	if m.Round {
		s.held = nil
		s.repeatXIDs()
	}
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
}

func (s *source) reportXID(m Message) {
	if m.XID != nil && s.xids.add(*m.XID) {
		s.yield(*m.XID)
	}
}

func (s *source) repeatXIDs() {
	for _, xid := range s.xids.repeated() {
		s.yield(xid)
	}
}

// driverIdentity tells one state of the kernel's driver from another: its version, its GPUs, and the
// library that goes with it. A worker knows only the one that it was started with. A GPU that went and
// came back between two looks, as when its PCI device is removed and the bus rescanned, is known by
// its link to its driver: sysfs gives no inode number twice for a long time.
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
			address := path.Base(g.Name())
			var bound unix.Stat_t
			_ = unix.Lstat(node.LocalPath(path.Join("/sys/bus/pci/devices", address, "driver")), &bound)
			parts = append(parts, address, fmt.Sprint(bound.Ino))
		}
	}
	return strings.Join(parts, "\n")
}
