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

// Config configures driver discovery and the driver worker.
type Config struct {
	Node       host.Root
	DriverRoot string // path on the node; empty: search the known driver roots
	Library    string // path of NVML on the node; empty: search the driver root

	// Interval is the time between two probe cycles, and between two attempts to find a driver.
	Interval time.Duration

	// CallTimeout is the timeout of a step, which consists of a few calls into the driver.
	CallTimeout time.Duration

	// LimitMemory enables the memory limits of Settings. It mounts the node's cgroups in the worker's mount namespace.
	LimitMemory bool

	// Worker is the path of the driver worker, gpucdi-nvml.
	Worker string
}

const (
	// exitTimeout is how long a killed worker may take to exit.
	exitTimeout = 5 * time.Second
	// failedLimit is the maximum length of Message.Failed and Reply.Failed in an error, in bytes.
	failedLimit = 1024
)

// source supervises the driver workers.
type source struct {
	cfg      Config
	settings *Settings
	reload   <-chan Config
	yield    func(Report)

	identity    string                  // see driverIdentity; what the fields below know by index is obsolete if it changes
	latest      *gpu.Inventory          // as last reported, including quarantined GPUs
	quarantined map[int]quarantineEntry // by index
	blocked     []int                   // for the next worker, see process
	xids        xids
	stuck       *process // a killed worker that hangs in the kernel; nil if none
}

// Run yields the state of the driver until ctx ends: a Snapshot at the start and whenever it has changed, and other
// reports in between. It recovers from removal, upgrade and failure of the driver, and applies each config from reload.
// It never blocks on a call into the driver. It calls yield sequentially; while yield blocks, reports and the replies
// to settings are delayed. settings sends its commands to the driver workers of Run.
func Run(ctx context.Context, cfg Config, settings *Settings, reload <-chan Config, yield func(Report)) {
	s := source{cfg: cfg, settings: settings, reload: reload, yield: yield}
	s.run(ctx)
}

func (s *source) run(ctx context.Context) {
	s.clearQuarantine()
	for ctx.Err() == nil {
		if err := s.runWorker(ctx); err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case s.cfg = <-s.reload:
			s.clearQuarantine()
		case <-time.After(jitter(s.cfg.Interval)):
		}
	}
}

func (s *source) clearQuarantine() { s.quarantined, s.blocked = map[int]quarantineEntry{}, nil }

// jitter returns d plus up to 25 %, so that the agents of a cluster do not retry at the same time.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// runWorker finds the driver and runs a worker until it fails, or the driver or the config has changed. It reports an
// error before returning it.
func (s *source) runWorker(ctx context.Context) error {
	root, err := host.FindDriver(s.cfg.Node, s.cfg.DriverRoot, s.cfg.Library)
	if err != nil {
		s.yield(Snapshot{Err: err})
		return err
	}
	if root.NVML == "" {
		return s.watchJetson(ctx)
	}
	s.identify(driverIdentity(s.cfg.Node, root)) // before the worker loads the library
	p, err := s.start(ctx, root)
	if err != nil {
		s.yield(Snapshot{Err: err})
		return err
	}
	defer p.stepLog.file.Close()
	if err = s.supervise(ctx, root, p); err != nil && ctx.Err() == nil {
		s.yield(Snapshot{Err: err})
	}
	p.kill()
	defer p.drop()
	return errors.Join(err, s.reap(ctx, p))
}

// identify ends the quarantine of all GPUs, and discards the latest inventory, if the driver or the set of GPUs has
// changed: an index may belong to another GPU now.
func (s *source) identify(identity string) {
	if identity != s.identity {
		s.clearQuarantine()
		s.identity, s.latest = identity, nil
	}
}

func (s *source) start(ctx context.Context, root host.DriverRoot) (*process, error) {
	return start(ctx, s.cfg.Worker, root.LoaderDirs(), append(s.quarantineArgs(),
		"--host-root", s.cfg.Node.LocalPath("/"),
		"--library", root.LocalPath(root.NVML),
		"--platform", root.Platform,
		"--devices", root.DevicesDir(s.cfg.Node),
		"--cgroups", s.cgroupsDir(),
		"--interval", s.cfg.Interval.String(),
	))
}

// cgroupsDir returns the directory of the node's cgroups in this process's file system; empty if it is host.CgroupDir,
// or if the worker does not need it.
func (s *source) cgroupsDir() string {
	dir := s.cfg.Node.LocalPath(host.CgroupDir)
	if !s.cfg.LimitMemory || dir == host.CgroupDir || !s.cfg.Node.HasCgroup2() {
		return ""
	}
	return dir
}

// reap waits for a killed worker to exit, and forwards its remaining XIDs. A worker that hangs in the kernel does not
// exit: reap returns after exitTimeout, so that the caller starts another worker, which may still reach the other GPUs.
// If that worker hangs in the kernel, too, reap waits until one of the two exits.
func (s *source) reap(ctx context.Context, p *process) error {
	defer s.reportRepeatedXIDs()
	messages, late := p.messages, time.After(exitTimeout)
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
	err := errors.New("driver workers hang in the kernel and cannot be killed; check the kernel log for the cause, and reboot the node")
	s.yield(Snapshot{Err: err})
	select {
	case <-ctx.Done():
	case <-p.ended:
	case <-s.stuck.ended:
		s.stuck = p
	}
	return err
}

// stuckEnded returns a channel that is closed when the stuck worker has exited, or nil if there is none.
func (s *source) stuckEnded() <-chan struct{} {
	if s.stuck == nil {
		return nil
	}
	return s.stuck.ended
}

// supervise forwards the reports of a worker until the worker fails, the driver or the config has changed, or the stuck
// worker has exited: the next worker may then run trials again.
func (s *source) supervise(ctx context.Context, root host.DriverRoot, p *process) error {
	p.blocked, s.blocked = s.blocked, nil
	s.settings.attach(p.commands, s.cfg.LimitMemory)
	defer s.settings.detach()
	p.due = Clock() + s.cfg.CallTimeout
	timer := time.NewTimer(s.cfg.CallTimeout)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s.cfg = <-s.reload:
			s.clearQuarantine()
			return nil
		case <-s.stuckEnded():
			s.stuck = nil
			return nil
		case <-timer.C:
			failed, next := s.check(p)
			if len(failed) > 0 {
				s.admitRecovered(p)
				return s.quarantine(failed, fmt.Errorf("unresponsive: call into the driver did not return within %s", s.cfg.CallTimeout))
			}
			timer.Reset(next)
		case m, open := <-p.messages:
			if !open {
				return s.handleExit(ctx, p)
			}
			p.idle = false
			if m.Failed != "" {
				return errors.New(host.Printable(m.Failed, failedLimit))
			}
			// The worker's data is obsolete if the driver has changed. This is checked once per cycle, so that the
			// agent does not wake up more often.
			if m.Probes != nil && driverIdentity(s.cfg.Node, root) != s.identity {
				return nil
			}
			if m.Cycle {
				p.probed, p.blocked = true, nil
			}
			s.report(m, root)
		}
	}
}

// handleExit quarantines the GPUs that may have crashed the worker. It quarantines none if the worker was killed, for
// example by the OOM killer, after its first probe cycle. An earlier kill counts as a crash, because otherwise workers
// that are always killed early would be restarted forever without a fault.
func (s *source) handleExit(ctx context.Context, p *process) error {
	s.admitRecovered(p)
	cause := errors.New("driver worker failed and cannot be killed")
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(exitTimeout):
	case <-p.ended:
		if p.killed && p.probed {
			return nil
		}
		cause = p.err
	}
	return s.quarantine(crashed(p.stepLog.steps(), Clock()), cause)
}

// report yields the reports that a message contains, and delivers its reply.
func (s *source) report(m Message, root host.DriverRoot) {
	if m.Reply != nil {
		s.settings.deliver(*m.Reply)
	}
	s.reportXID(m)
	if m.Cycle {
		s.reportRepeatedXIDs()
	}
	switch {
	case m.Inventory != nil:
		s.latest = s.addQuarantined(m.Inventory)
		s.yield(Snapshot{Inventory: s.latest, Driver: root, Probes: m.Probes})
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

func (s *source) reportRepeatedXIDs() {
	for _, xid := range s.xids.repeated() {
		s.yield(xid)
	}
}

// driverIdentity returns a string that changes when another worker is needed: when the NVML library, the version of the
// kernel module or the set of GPUs has changed. It includes the inode numbers of the PCI devices' driver links in
// sysfs, which are not reused for a long time, to detect a GPU that was removed and rescanned between two calls.
func driverIdentity(node host.Root, root host.DriverRoot) string {
	var parts []string
	// Package managers replace a library rather than overwrite it, so its inode changes.
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
