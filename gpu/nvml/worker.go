package nvml

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Work is what the driver worker is to do.
type Work struct {
	Node     host.Root
	Library  string        // this process's path of NVML
	Interval time.Duration // between two probes of all GPUs

	// Doubted are the indexes of GPUs that held up a call or ended a worker. They are left out until
	// they answer a trial, which is made TrialAfter the start; 0: never.
	Doubted    []int
	TrialAfter time.Duration
}

// worker is a process that does nothing but call the driver. A driver can hold a call for ever or
// end the process that makes it, and its library can be loaded only once in a process: so it is
// called in a process that the agent can lose.
//
// One goroutine owns it. Steps about GPUs run in others, which it waits for.
type worker struct {
	session
	work    Work
	started time.Time
	out     *json.Encoder
	marker  driver.Marker

	latest  *gpu.Inventory
	pending bool                   // latest is yet to be reported
	stale   bool                   // latest is to be read again: it lacks a GPU that is doubted no more, or one was away
	silent  map[string]bool        // UUIDs of the GPUs of latest whose last probe failed
	devices map[string]nvml.Device // of latest, by UUID
	uuids   map[nvml.Device]string // of all GPUs that were ever read
	events  events
	trials  <-chan outcome // of the doubted GPUs; nil until they are tried
}

// Serve reads the driver and reports to the agent that started this process, until the driver or the
// agent fails or the process is killed, which is its regular end. An error is reported too.
func Serve(work Work) error {
	marker, out := driver.Inherited()
	w := &worker{work: work, started: time.Now(), out: json.NewEncoder(out), marker: marker, uuids: map[nvml.Device]string{}}
	err := w.serve()
	if err != nil {
		_ = w.out.Encode(driver.Message{Failed: err.Error()})
	}
	return err
}

func (w *worker) serve() error {
	lib := nvml.New(nvml.WithLibraryPath(w.work.Library))
	var ret nvml.Return
	if err := w.step(driver.Step{Index: driver.Nobody}, func() { ret = lib.Init() }); err != nil {
		return err
	}
	if ret != nvml.SUCCESS {
		return initError(w.work.Library, ret)
	}
	w.session = session{lib: lib, node: w.work.Node}
	for {
		round := []func() error{w.readInventory, w.probeAll, w.awaitEvents, w.tryDoubted}
		for _, step := range round {
			if err := step(); err != nil {
				return err
			}
		}
	}
}

// whole says whether all GPUs and MIG devices were read without a fault.
func whole(inv *gpu.Inventory) bool {
	return inv != nil && len(inv.Unreadable) == 0 && !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool {
		return !g.Fault.None() || slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool { return !m.Fault.None() })
	})
}

// readInventory reads the GPUs, unless all have been read without a fault and are unchanged. NVML's
// list of GPUs is made by its Init: one that is plugged in later is for the next worker.
func (w *worker) readInventory() error {
	if whole(w.latest) && !w.stale {
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
	}
	return nil
}

// unchanged says whether what changes while the driver runs is as last read: the MIG mode, the MIG
// devices and the place in a fabric. Where no GPU is in MIG mode that is two calls a GPU, and none
// where it has no MIG. A GPU that fails is for the probes to judge.
func (w *worker) unchanged() (bool, error) {
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

// probeAll probes every GPU of the inventory. A new inventory is reported with the first probes, so
// that no unhealthy GPU is advertised in between, and after its GPUs were registered for events, so
// that no event is missed. Its telemetry can wait for the next round.
func (w *worker) probeAll() error {
	probes := make([]health.Probe, len(w.latest.GPUs))
	err := w.each(indexes(w.latest.GPUs), func(i int) { probes[i] = w.probe(w.devices[w.latest.GPUs[i].UUID]) })
	if err != nil {
		return err
	}
	if w.returned(probes) {
		w.stale = true
		if err := w.readInventory(); err != nil {
			return err
		}
		return w.probeAll()
	}
	m := driver.Message{Probes: driver.Probes{}, Telemetry: driver.Telemetry{}, Round: true}
	var answering []gpu.GPU
	for i, g := range w.latest.GPUs {
		m.Probes[g.UUID] = probes[i]
		if probes[i].Failed == "" {
			answering = append(answering, g)
		}
	}
	if err := w.listen(answering); err != nil {
		return err
	}
	if w.pending {
		m.Inventory, w.pending = w.latest, false
		return w.out.Encode(m)
	}
	measured := make([]gpu.Telemetry, len(answering))
	err = w.each(indexes(answering), func(i int) { measured[i] = w.measure(w.devices[answering[i].UUID]) })
	if err != nil {
		return err
	}
	for i, g := range answering {
		m.Telemetry[g.UUID] = measured[i]
	}
	return w.out.Encode(m)
}

// returned reports whether a GPU answers that did not before. It may be another GPU in the same slot,
// or have another minor number, even if the kernel's list of GPUs has not changed between two rounds.
func (w *worker) returned(probes []health.Probe) (returned bool) {
	silent := map[string]bool{}
	for i, g := range w.latest.GPUs {
		if probes[i].Failed != "" {
			silent[g.UUID] = true
		} else if w.silent[g.UUID] {
			returned = true
		}
	}
	w.silent = silent
	return returned
}

// tryDoubted asks the doubted GPUs whether they answer again, and has those read that do. The others
// are not waited for: whoever hangs, or ends the process, does so after all others were probed.
func (w *worker) tryDoubted() error {
	if len(w.work.Doubted) > 0 && w.trials == nil && w.work.TrialAfter > 0 && time.Since(w.started) >= w.work.TrialAfter {
		doubted := w.work.Doubted
		w.trials = w.try(doubted, func(i int) {
			if _, dev, err := w.read(doubted[i]); err == nil {
				w.tryDevice(dev)
			}
		})
	}
	for {
		select {
		case o := <-w.trials:
			if o.err != nil {
				return fmt.Errorf("trying GPU %d: %w", o.index, o.err)
			}
			w.work.Doubted = slices.DeleteFunc(slices.Clone(w.work.Doubted), func(index int) bool { return index == o.index })
			w.stale = true
		default:
			return nil
		}
	}
}

// tryDevice makes all calls that the rounds make about a GPU.
func (w *worker) tryDevice(dev nvml.Device) {
	w.probe(dev)
	w.measure(dev)
	w.nvlinks(dev)
	if set, ret := w.lib.EventSetCreate(); ret == nvml.SUCCESS {
		_ = dev.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		_ = set.Free()
	}
}
