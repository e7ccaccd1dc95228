package nvml

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Work says what the process that holds the driver is to do.
type Work struct {
	Node     host.Root
	Library  string        // this process's path of NVML
	Interval time.Duration // between two probes of all GPUs

	// Doubted are the indexes of GPUs that have held a call up before, or
	// ended the process. They are asked only after all the others.
	Doubted []int
}

// worker is a process that does nothing but talk to the driver. A driver can
// hold a call for ever or end the process that makes it, and its library can
// only be loaded once in a process: so the agent lets another process call it,
// which it can lose.
type worker struct {
	session
	work   Work
	out    *json.Encoder
	marker driver.Marker
	calls  uint32 // as marked

	latest  *gpu.Inventory
	untold  bool                   // the agent does not know it yet
	devices map[string]nvml.Device // of it, by UUID
	events  events
}

// Serve holds the driver and writes what it says to out, until the driver
// fails, out is closed, or the process is killed, which is how it is meant to
// end. An error is told on out too.
func Serve(work Work, out io.Writer) error {
	w := &worker{work: work, out: json.NewEncoder(out), marker: driver.InheritedMarker()}
	err := w.serve()
	if err != nil {
		_ = w.out.Encode(driver.Message{Failed: err.Error()})
	}
	return err
}

func (w *worker) serve() error {
	if err := w.asking(driver.Nobody); err != nil {
		return err
	}
	// encoding/json takes half a millisecond to learn the types: while the driver starts.
	go func() { _ = json.NewEncoder(io.Discard).Encode(driver.Message{}) }()
	lib := nvml.New(nvml.WithLibraryPath(w.work.Library))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return initError(w.work.Library, ret)
	}
	w.session = session{lib: lib, node: w.work.Node}
	for {
		round := []func() error{w.readInventory, w.tellProbes, w.tellEvents, w.trust}
		for _, step := range round {
			if err := step(); err != nil {
				return err
			}
		}
	}
}

// asking marks whom the next calls are about.
func (w *worker) asking(index int) error {
	w.calls++
	return w.marker.Set(driver.Mark{Calls: w.calls, Index: index})
}

// whole says whether all GPUs and MIG devices were read without a fault.
func whole(inv *gpu.Inventory) bool {
	return inv != nil && len(inv.Unreadable) == 0 && !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool {
		return g.Fault != "" || slices.ContainsFunc(g.MIGDevices, func(m gpu.MIGDevice) bool { return m.Fault != "" })
	})
}

// readInventory reads the GPUs, unless they have all been read well and are as
// they were. NVML's list of GPUs is made by its Init: what is plugged in
// later is for the next process to see.
func (w *worker) readInventory() error {
	if whole(w.latest) {
		same, err := w.asBefore()
		if same || err != nil {
			return err
		}
	}
	inv, devices, err := w.inventory()
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(inv, w.latest) {
		w.latest, w.devices, w.untold = inv, devices, true
	}
	return nil
}

// asBefore says whether what changes while the driver runs is what was last read:
// the MIG mode and the MIG devices of all GPUs, and their place in a fabric. Where
// no GPU is in MIG mode that is two calls a GPU, and none where it knows no MIG. A
// GPU that does not tell is for the probes to judge.
func (w *worker) asBefore() (bool, error) {
	for _, g := range w.latest.GPUs {
		if g.MIG == gpu.MIGUnsupported {
			continue
		}
		if err := w.asking(g.Index); err != nil {
			return false, err
		}
		now := g
		w.readClique(&now, w.devices[g.UUID])
		if err := w.readMIG(&now, w.devices[g.UUID]); err == nil && !reflect.DeepEqual(now, g) {
			return false, nil
		}
	}
	return true, w.asking(driver.Nobody)
}

// trust lets the next round ask the GPUs that were left out, if they answer a
// simple question: whoever hangs or ends the process does it here, after all
// the others were asked and heard.
func (w *worker) trust() error {
	for _, index := range w.work.Doubted {
		if err := w.asking(index); err != nil {
			return err
		}
		if _, dev, err := w.read(index); err == nil {
			w.probe(dev)
		}
	}
	if len(w.work.Doubted) > 0 {
		w.work.Doubted, w.latest = nil, nil
	}
	return nil
}

// tellProbes looks at every GPU of the inventory. An inventory is told with the
// first look at its GPUs, so that no sick one is given out in between, and after
// the first wish to hear of them, so that no event is missed. What they measure
// can wait for the next round.
func (w *worker) tellProbes() error {
	probes, telemetry := driver.Probes{}, driver.Telemetry{}
	var answering []gpu.GPU
	for _, g := range w.latest.GPUs {
		if err := w.asking(g.Index); err != nil {
			return err
		}
		p := w.probe(w.devices[g.UUID])
		probes[g.UUID] = p
		if p.Fault != "" {
			continue
		}
		answering = append(answering, g)
		if !w.untold {
			telemetry[g.UUID] = w.measure(w.devices[g.UUID])
		}
	}
	if err := errors.Join(w.listen(answering), w.asking(driver.Nobody)); err != nil {
		return err
	}
	m := driver.Message{Probes: probes, Telemetry: telemetry, Waits: w.work.Interval}
	if w.untold {
		m.Inventory, w.untold = w.latest, false
	}
	return w.out.Encode(m)
}
