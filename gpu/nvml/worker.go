package nvml

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Config configures the driver worker.
type Config struct {
	Node     host.Root
	Platform gpu.Platform  // of the GPUs
	Library  string        // path of NVML, as seen by this process
	Mounts   Mounts        // as seen by this process
	Interval time.Duration // between two probe cycles

	// Quarantined are the indexes of the GPUs to exclude until their trial succeeds. The trials start TrialAfter after
	// the start of the worker; 0 disables them.
	Quarantined []int
	TrialAfter  time.Duration
}

// worker makes all calls into the driver, in a separate process: a call can block forever or crash the process, and a
// process cannot replace NVML once it is loaded.
//
// One goroutine owns the worker. It waits for the goroutines that run steps about GPUs, except trials and commands.
type worker struct {
	session
	cfg      Config
	started  time.Time
	out      output
	commands <-chan driver.Command
	stepLog  driver.StepLog

	// current are the GPUs of latest that commands can be about, by UUID. It is replaced together with latest, and safe
	// for concurrent use.
	current atomic.Pointer[map[string]target]

	latest  *gpu.Inventory
	cgroups gpu.MemoryLimits       // result of cgroupSupport when latest was read
	pending bool                   // latest has not been reported
	stale   bool                   // latest must be read again, because a GPU has left the quarantine or responds again
	failing map[string]bool        // UUIDs of the GPUs of latest whose last probe failed
	devices map[string]nvml.Device // of latest, by UUID
	uuids   map[nvml.Device]string // of all GPUs that were ever read
	history map[string]*history    // by UUID
	events  events
	trials  <-chan trialResult // nil until the trials have started
}

// Serve reads the driver and reports to gpucdi until an error occurs or gpucdi kills the process, which is the regular
// exit. It reports an error before returning it. If cfg.Mounts is set, Serve first executes this program again in a
// mount namespace with the mounts.
func Serve(cfg Config) error {
	var err error
	if cfg.Mounts != (Mounts{}) {
		err = cfg.Mounts.Exec("/proc/self/exe", append(os.Args, "--devices", "", "--cgroups", ""))
	}
	stepLog, out := driver.Inherited()
	w := &worker{cfg: cfg, started: time.Now(), out: output{to: json.NewEncoder(out)}, stepLog: stepLog,
		uuids: map[nvml.Device]string{}, history: map[string]*history{}}
	if err == nil {
		w.commands = readCommands(os.Stdin)
		err = w.serve()
	}
	if err != nil {
		_ = w.out.send(driver.Message{Failed: err.Error()})
	}
	return err
}

func (w *worker) serve() error {
	lib := nvml.New(nvml.WithLibraryPath(w.cfg.Library))
	var ret nvml.Return
	if err := w.step(driver.Step{Index: driver.NoGPU}, func() { ret = lib.Init() }); err != nil {
		return err
	}
	if ret != nvml.SUCCESS {
		return initError(w.cfg.Library, ret)
	}
	w.session = session{lib: lib, node: w.cfg.Node, platform: w.cfg.Platform, samePIDs: sharesPIDs(w.cfg.Node)}
	for {
		cycle := []func() error{w.readInventory, w.probeAll, w.measureAll, w.awaitEvents, w.tryQuarantined}
		for _, step := range cycle {
			if err := step(); err != nil {
				return err
			}
		}
	}
}

// complete reports whether all GPUs and MIG devices were read without a fault.
func complete(inv *gpu.Inventory) bool {
	return inv != nil && len(inv.Unreadable) == 0 && !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool {
		return !g.Fault.None() || slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool { return !m.Fault.None() })
	})
}

// readInventory reads the GPUs if the latest inventory is incomplete, stale or has changed. It does not find a GPU that
// is plugged in later, because NVML enumerates the GPUs during Init; gpucdi starts another worker then.
func (w *worker) readInventory() error {
	if complete(w.latest) && !w.stale {
		same, err := w.unchanged()
		if same || err != nil {
			return err
		}
	}
	inv, devices, err := w.inventory()
	if err != nil {
		return err
	}
	w.stale = false
	if !reflect.DeepEqual(inv, w.latest) {
		w.latest, w.devices, w.pending = inv, devices, true
		w.setCurrent()
	}
	return nil
}

// unchanged reports whether the attributes that can change while the driver is loaded still have their latest values:
// the MIG mode, the MIG devices, the fabric clique, and the cgroups' support for memory limits. It takes two calls per
// GPU in the common case that MIG is disabled, and none if MIG is not supported. Errors of these calls are ignored,
// because the probes detect a failing GPU.
func (w *worker) unchanged() (bool, error) {
	if w.platform == "" && w.hasMemoryLimits() {
		unknown := func(g gpu.GPU) bool { return g.MemoryLimits == "" } // after an error that may be transient
		if cgroupSupport(w.node) != w.cgroups /* the kubelet has started since */ || slices.ContainsFunc(w.latest.GPUs, unknown) {
			return false, nil
		}
	}
	var gpus []gpu.GPU
	for _, g := range w.latest.GPUs {
		if g.MIG != gpu.MIGUnsupported {
			gpus = append(gpus, g)
		}
	}
	changed := make([]bool, len(gpus))
	err := w.each(indexes(gpus), func(i int) {
		now := gpus[i]
		w.readClique(&now, w.devices[now.UUID])
		err := w.readMIG(&now, w.devices[now.UUID])
		changed[i] = err == nil && !reflect.DeepEqual(now, gpus[i])
	})
	return !slices.Contains(changed, true), err
}

// probeAll probes every GPU of the inventory and reports the result. It reports a new inventory together with the first
// probes, so that no unhealthy GPU is advertised in between, and after registering for events, so that no event is
// missed.
func (w *worker) probeAll() error {
	probes, lost := make([]health.Probe, len(w.latest.GPUs)), make([]bool, len(w.latest.GPUs))
	err := w.each(indexes(w.latest.GPUs), func(i int) { probes[i], lost[i] = w.probe(w.devices[w.latest.GPUs[i].UUID]) })
	if err != nil {
		return err
	}
	if w.responding(probes) {
		w.stale = true
		if err := w.readInventory(); err != nil {
			return err
		}
		return w.probeAll()
	}
	m := driver.Message{Probes: driver.Probes{}}
	for i, g := range w.latest.GPUs {
		m.Probes[g.UUID] = probes[i]
	}
	if err := w.registerEvents(w.audible(probes, lost)); err != nil {
		return err
	}
	if w.pending {
		m.Inventory, w.pending = w.latest, false
	}
	return w.out.send(m)
}

// responsive returns the GPUs whose last probe succeeded.
func (w *worker) responsive() []gpu.GPU {
	return slices.DeleteFunc(slices.Clone(w.latest.GPUs), func(g gpu.GPU) bool { return w.failing[g.UUID] })
}

// measureAll reports the telemetry of the GPUs that respond. It ends the probe cycle, so that no measurement delays the
// report of a probe.
func (w *worker) measureAll() error {
	gpus := w.responsive()
	histories := make([]*history, len(gpus))
	for i, g := range gpus {
		if w.history[g.UUID] == nil {
			w.history[g.UUID] = &history{}
		}
		histories[i] = w.history[g.UUID]
	}
	telemetry := make([]gpu.Telemetry, len(gpus))
	err := w.each(indexes(gpus), func(i int) { telemetry[i] = w.readTelemetry(gpus[i], w.devices[gpus[i].UUID], histories[i]) })
	if err != nil {
		return err
	}
	m := driver.Message{Telemetry: driver.Telemetry{}, Cycle: true}
	for i, g := range gpus {
		m.Telemetry[g.UUID] = telemetry[i]
	}
	return w.out.send(m)
}

// responding records which probes failed, and reports whether a GPU responds again after its previous probe failed.
// That GPU may be another one in the same slot, or have another minor number, even if the kernel's list of GPUs is the
// same in both cycles.
func (w *worker) responding(probes []health.Probe) (responding bool) {
	failing := map[string]bool{}
	for i, g := range w.latest.GPUs {
		if probes[i].Failed != "" {
			failing[g.UUID] = true
		} else if w.failing[g.UUID] {
			responding = true
		}
	}
	w.failing = failing
	return responding
}

// tryQuarantined starts the trials of the quarantined GPUs when they are due. A GPU whose trial is done leaves the
// quarantine. tryQuarantined does not wait for the trials, so a trial that hangs does not delay the other GPUs' probes.
func (w *worker) tryQuarantined() error {
	if len(w.cfg.Quarantined) > 0 && w.trials == nil && w.cfg.TrialAfter > 0 && time.Since(w.started) >= w.cfg.TrialAfter {
		quarantined := w.cfg.Quarantined
		w.trials = w.startTrials(quarantined, func(i int) {
			if g, dev, err := w.readGPU(quarantined[i]); err == nil {
				w.callAll(g, dev)
			}
		})
	}
	for {
		select {
		case r := <-w.trials:
			if r.err != nil {
				return fmt.Errorf("running the trial of GPU %d: %w", r.index, r.err)
			}
			w.cfg.Quarantined = slices.DeleteFunc(slices.Clone(w.cfg.Quarantined), func(index int) bool { return index == r.index })
			w.stale = true
		default:
			return nil
		}
	}
}

// callAll makes the calls about a single GPU that a probe cycle makes after readGPU.
func (w *worker) callAll(g gpu.GPU, dev nvml.Device) {
	w.probe(dev)
	var h history
	w.readTelemetry(g, dev, &h)
	h.gpm.free()
	w.nvlinks(dev)
	if set, ret := w.lib.EventSetCreate(); ret == nvml.SUCCESS {
		_ = dev.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		_ = set.Free()
	}
}
