package nvml

import (
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// drainLimit bounds the number of events that are read from a set without waiting.
const drainLimit = 1000

// events is an NVML event set with the GPUs that are registered in it. A set contains only events since the
// registration, so it is replaced only if it fails or its GPUs change.
type events struct {
	set          nvml.EventSet   // nil if none
	gpus         []string        // UUIDs
	unregistered map[string]bool // UUIDs of those whose registration has failed and may succeed later
	failed       bool            // a wait on this set has failed
	silent       map[string]bool // UUIDs of the GPUs that no set contains before they respond; see audible

	failing bool      // the last wait has failed, perhaps on a previous set
	probed  time.Time // when a failed wait last caused an early probe cycle
}

// audible returns the GPUs for an event set. Waits on a set with a lost GPU fail immediately and return no events of the
// others. A GPU with another failure raises XIDs that explain it, so it is excluded only after a wait has failed.
func (w *worker) audible(probes []health.Probe, lost []bool) (gpus []gpu.GPU) {
	silent := map[string]bool{}
	for i, g := range w.latest.GPUs {
		if probes[i].Failed != "" && (lost[i] || w.events.failed || w.events.silent[g.UUID]) {
			silent[g.UUID] = true
		} else {
			gpus = append(gpus, g)
		}
	}
	w.events.silent = silent
	return gpus
}

// registerEvents creates an event set for the GPUs, unless the current set is for the same GPUs and works.
func (w *worker) registerEvents(gpus []gpu.GPU) error {
	uuids := make([]string, len(gpus))
	for i, g := range gpus {
		uuids[i] = g.UUID
	}
	if w.events.set != nil && !w.events.failed && slices.Equal(uuids, w.events.gpus) {
		return w.register(w.events.set, slices.DeleteFunc(gpus, func(g gpu.GPU) bool { return !w.events.unregistered[g.UUID] }))
	}
	var set nvml.EventSet
	var ret nvml.Return
	err := w.step(driver.Step{Index: driver.NoGPU}, func() { set, ret = w.lib.EventSetCreate() })
	if err != nil || ret != nvml.SUCCESS {
		return err // the current set keeps the events until the next attempt
	}
	if err := w.register(set, gpus); err != nil {
		return err
	}
	old := w.events
	w.events.set, w.events.gpus, w.events.failed = set, uuids, false
	if old.set == nil {
		return nil
	}
	return w.replaceSet(old.set)
}

// register registers GPUs in a set. A GPU whose registration fails still has probes.
func (w *worker) register(set nvml.EventSet, gpus []gpu.GPU) error {
	results := make([]nvml.Return, len(gpus))
	err := w.each(indexes(gpus), func(i int) {
		results[i] = w.devices[gpus[i].UUID].RegisterEvents(nvml.EventTypeXidCriticalError, set)
	})
	if err != nil {
		return err
	}
	w.events.unregistered = map[string]bool{}
	for i, g := range gpus {
		if results[i] != nvml.SUCCESS && results[i] != nvml.ERROR_NOT_SUPPORTED {
			w.events.unregistered[g.UUID] = true
		}
	}
	return nil
}

// replaceSet reports the remaining events of the previous set and frees it. Events since the registration of the
// current set are in both sets, so equal ones in the current set are skipped. If a GPU raises the same XID twice around
// the replacement, it may be counted once. No XID is lost unless the previous set has failed.
func (w *worker) replaceSet(old nvml.EventSet) error {
	reported, err := w.drain(old, nil)
	if err != nil {
		return err
	}
	if err := w.step(driver.Step{Index: driver.NoGPU}, func() { _ = old.Free() }); err != nil {
		return err
	}
	if len(reported) > 0 {
		_, err = w.drain(w.events.set, reported)
	}
	return err
}

// drain reads the pending events of a set and reports those that are not in known. It returns all that it read.
func (w *worker) drain(set nvml.EventSet, known []nvml.EventData) (all []nvml.EventData, err error) {
	for len(all) < drainLimit {
		e, ret, err := w.wait(set, 0)
		if err != nil || ret != nvml.SUCCESS {
			return all, err
		}
		all = append(all, e)
		if i := slices.Index(known, e); i >= 0 {
			known = slices.Delete(known, i, i+1)
		} else if err := w.reportEvent(e); err != nil {
			return all, err
		}
	}
	return all, nil
}

// pollEvents reports the pending events without waiting.
func (w *worker) pollEvents() error {
	if w.events.set == nil {
		return nil
	}
	_, err := w.drain(w.events.set, nil)
	return err
}

// awaitEvents reports XIDs until the next probe cycle is due. If waiting fails because of a GPU, one cycle starts
// early, because its probes identify the GPU. If waiting still fails after that cycle, the next ones follow at the
// regular interval.
func (w *worker) awaitEvents() error {
	until := time.Now().Add(w.cfg.Interval)
	for left := time.Until(until); left > 0; left = time.Until(until) {
		if w.events.set == nil || w.events.failed {
			if err := w.step(driver.Step{Index: driver.NoGPU, Start: left}, func() { time.Sleep(left) }); err != nil {
				return err
			}
			continue
		}
		e, ret, err := w.wait(w.events.set, left)
		if err != nil {
			return err
		}
		w.events.failed = ret != nvml.SUCCESS && ret != nvml.ERROR_TIMEOUT
		again := w.events.failing
		w.events.failing = w.events.failed
		switch {
		case ret == nvml.SUCCESS:
			if err := w.reportEvent(e); err != nil {
				return err
			}
		case ret == nvml.ERROR_DRIVER_NOT_LOADED, ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH:
			// No early cycle, because gpucdi detects this without the worker.
		case w.events.failed && !again && time.Since(w.events.probed) >= w.cfg.Interval:
			w.events.probed = time.Now()
			return nil
		}
	}
	return nil
}

// wait waits for an event of a set.
func (w *worker) wait(set nvml.EventSet, timeout time.Duration) (e nvml.EventData, ret nvml.Return, err error) {
	// Round up, because repeated waits of 0 ms would be a busy loop.
	ms := min((timeout+time.Millisecond-1)/time.Millisecond, math.MaxInt32)
	err = w.step(driver.Step{Index: driver.NoGPU, Start: ms * time.Millisecond}, func() { e, ret = set.Wait(uint32(ms)) })
	return e, ret, err
}

func (w *worker) reportEvent(e nvml.EventData) error {
	uuid, known := w.uuids[e.Device]
	if !known || e.EventType != nvml.EventTypeXidCriticalError {
		return nil
	}
	xid := &driver.XID{GPU: uuid, Code: int(min(e.EventData, math.MaxInt32))}
	if g, present := w.latest.Find(uuid); present {
		xid.MIG = affectedMIGDevices(g, e.GpuInstanceId, e.ComputeInstanceId)
	}
	return w.out.send(driver.Message{XID: xid})
}
