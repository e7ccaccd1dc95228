package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// events is an NVML event set and the GPUs that are in it. A set tells of what
// happens after it was made, so it is kept as long as it works.
type events struct {
	set    nvml.EventSet // nil when there is none
	gpus   []string      // UUIDs
	failed bool
}

// listen makes the set hold the GPUs that answer. With one in it that is lost,
// every wait fails at once, and nothing is heard of the others.
func (w *worker) listen(answering []gpu.GPU) error {
	uuids := make([]string, len(answering))
	for i, g := range answering {
		uuids[i] = g.UUID
	}
	if w.events.set != nil {
		if !w.events.failed && slices.Equal(uuids, w.events.gpus) {
			return nil
		}
		_ = w.events.set.Free()
		w.events = events{}
	}
	set, ret := w.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil // there are still the probes
	}
	for _, g := range answering {
		if err := w.asking(g.Index); err != nil {
			return err
		}
		// A GPU without events is known by its probes alone.
		_ = w.devices[g.UUID].RegisterEvents(nvml.EventTypeXidCriticalError, set)
	}
	w.events = events{set: set, gpus: uuids}
	return nil
}

// tellEvents tells of XIDs until it is time for the next round.
func (w *worker) tellEvents() error {
	until := time.Now().Add(w.work.Interval)
	for left := time.Until(until); left > 0; left = time.Until(until) {
		if w.events.set == nil || w.events.failed {
			time.Sleep(left)
			continue
		}
		// Rounded up: to wait for 0 ms, over and over, is to spin.
		data, ret := w.events.set.Wait(uint32(left.Milliseconds()) + 1)
		switch ret {
		case nvml.SUCCESS:
			if err := w.tellEvent(data); err != nil {
				return err
			}
		case nvml.ERROR_TIMEOUT:
		default:
			w.events.failed = true // the next probes show which GPU it is
		}
	}
	return nil
}

func (w *worker) tellEvent(data nvml.EventData) error {
	if data.EventType != nvml.EventTypeXidCriticalError {
		return nil
	}
	for _, g := range w.latest.GPUs {
		if w.devices[g.UUID] == data.Device {
			xid := &driver.XID{GPU: g.UUID, MIG: concerned(g, data.GpuInstanceId, data.ComputeInstanceId), Code: int(data.EventData)}
			return w.out.Encode(driver.Message{XID: xid, Waits: w.work.Interval})
		}
	}
	return nil
}
