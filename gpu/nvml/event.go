package nvml

import (
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// burst is the most events that are taken from a set without waiting.
const burst = 1000

// events is an NVML event set and the GPUs registered with it. A set holds what happens after the
// registration, so it is kept as long as it works.
type events struct {
	set    nvml.EventSet // nil when there is none
	gpus   []string      // UUIDs
	failed bool          // a wait has failed since the set was made

	failing bool      // the last wait has failed, be it on an earlier set
	probed  time.Time // when a failed wait last led to probes ahead of time
}

// listen makes an event set for the GPUs that answer, unless the present one is. Waits on a set with
// a lost GPU fail at once, and report nothing of the others.
func (w *worker) listen(answering []gpu.GPU) error {
	uuids := make([]string, len(answering))
	for i, g := range answering {
		uuids[i] = g.UUID
	}
	if w.events.set != nil && !w.events.failed && slices.Equal(uuids, w.events.gpus) {
		return nil
	}
	var set nvml.EventSet
	var ret nvml.Return
	err := w.step(driver.Step{Index: driver.Nobody}, func() { set, ret = w.lib.EventSetCreate() })
	if err != nil || ret != nvml.SUCCESS {
		return err // the old set holds the events until the next attempt
	}
	err = w.each(indexes(answering), func(i int) {
		// A GPU without events is known by its probes alone.
		_ = w.devices[answering[i].UUID].RegisterEvents(nvml.EventTypeXidCriticalError, set)
	})
	if err != nil {
		return err
	}
	old := w.events
	w.events.set, w.events.gpus, w.events.failed = set, uuids, false
	if old.set == nil {
		return nil
	}
	return w.replace(old.set)
}

// replace reports what an event set that has a successor still holds, and frees it. Events since the
// successor's registration are in both, so those that the successor holds now are reported unless an
// equal one has been: the same error of the same GPU twice in that moment may be counted once, but
// none is lost.
func (w *worker) replace(old nvml.EventSet) error {
	reported, err := w.drain(old, nil)
	if err != nil {
		return err
	}
	if err := w.step(driver.Step{Index: driver.Nobody}, func() { _ = old.Free() }); err != nil {
		return err
	}
	if len(reported) > 0 {
		_, err = w.drain(w.events.set, reported)
	}
	return err
}

// drain reports the events that a set holds, each unless it is in known, and returns them.
func (w *worker) drain(set nvml.EventSet, known []nvml.EventData) (all []nvml.EventData, err error) {
	for len(all) < burst {
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

// pollEvents reports the events that have happened, without waiting.
func (w *worker) pollEvents() error {
	if w.events.set == nil {
		return nil
	}
	_, err := w.drain(w.events.set, nil)
	return err
}

// awaitEvents reports XIDs until it is time for the next round. When waiting fails because of a GPU,
// the round comes at once, since its probes show which one it is; but if that was of no use, not
// before its time.
func (w *worker) awaitEvents() error {
	until := time.Now().Add(w.work.Interval)
	for left := time.Until(until); left > 0; left = time.Until(until) {
		if w.events.set == nil || w.events.failed {
			if err := w.step(driver.Step{Index: driver.Nobody, Begin: left}, func() { time.Sleep(left) }); err != nil {
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
			// The agent sees it too.
		case w.events.failed && !again && time.Since(w.events.probed) >= w.work.Interval:
			w.events.probed = time.Now()
			return nil
		}
	}
	return nil
}

// wait waits for an event.
func (w *worker) wait(set nvml.EventSet, timeout time.Duration) (e nvml.EventData, ret nvml.Return, err error) {
	// Rounded up: to wait for 0 ms, over and over, is to spin.
	ms := min((timeout+time.Millisecond-1)/time.Millisecond, math.MaxInt32)
	err = w.step(driver.Step{Index: driver.Nobody, Begin: ms * time.Millisecond}, func() { e, ret = set.Wait(uint32(ms)) })
	return e, ret, err
}

func (w *worker) reportEvent(e nvml.EventData) error {
	uuid, known := w.uuids[e.Device]
	if !known || e.EventType != nvml.EventTypeXidCriticalError {
		return nil
	}
	xid := &driver.XID{GPU: uuid, Code: int(min(e.EventData, math.MaxInt32))}
	if g, present := w.latest.Find(uuid); present {
		xid.MIG = concerned(g, e.GpuInstanceId, e.ComputeInstanceId)
	}
	return w.out.Encode(driver.Message{XID: xid})
}
