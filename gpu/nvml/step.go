package nvml

import (
	"sync/atomic"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// patience is how long a step may hold up those about other GPUs. NVML may be called by several
// threads at a time; while the driver answers, it is not.
const patience = 100 * time.Millisecond

// step makes calls into the driver and marks them as s. Its Begin is how long they are meant to
// wait.
func (w *worker) step(s driver.Step, calls func()) error {
	s.Begin += driver.Clock()
	if err := w.marker.Set(s); err != nil {
		return err
	}
	calls()
	s.Back = true
	return w.marker.Set(s)
}

// outcome is the end of a step about a GPU.
type outcome struct {
	index int
	err   error // of marking it
}

// launch makes a step about each of several GPUs, in goroutines of its own, and returns where the
// outcomes arrive. calls gets the position in indexes. One goroutine makes the steps one after the
// other; when a step holds it up for longer than patience, another one goes on with those that have
// not begun.
func (w *worker) launch(indexes []int, trial bool, calls func(i int)) <-chan outcome {
	outcomes := make(chan outcome, len(indexes))
	var begun atomic.Int64
	makeSteps := func(done chan<- struct{}) {
		defer close(done)
		for i := int(begun.Add(1)) - 1; i < len(indexes); i = int(begun.Add(1)) - 1 {
			err := w.step(driver.Step{Index: indexes[i], Trial: trial}, func() { calls(i) })
			outcomes <- outcome{indexes[i], err}
		}
	}
	for begun.Load() < int64(len(indexes)) {
		done := make(chan struct{})
		go makeSteps(done)
		heldUp(done, &begun)
	}
	return outcomes
}

// heldUp returns when steps are done, or no more have begun for patience.
func heldUp(done <-chan struct{}, begun *atomic.Int64) {
	check := time.NewTicker(patience)
	defer check.Stop()
	for before := int64(-1); ; {
		select {
		case <-done:
			return
		case <-check.C:
			now := begun.Load()
			if now == before {
				return
			}
			before = now
		}
	}
}

// each makes a step about each of several GPUs and waits for all. While they take long, XIDs are
// reported.
func (w *worker) each(indexes []int, calls func(i int)) error {
	outcomes := w.launch(indexes, false, calls)
	for back := 0; back < len(indexes); {
		select {
		case o := <-outcomes:
			if o.err != nil {
				return o.err
			}
			back++
		case <-time.After(patience):
			if err := w.pollEvents(); err != nil {
				return err
			}
		}
	}
	return nil
}

func indexes(gpus []gpu.GPU) []int {
	all := make([]int, len(gpus))
	for i, g := range gpus {
		all[i] = g.Index
	}
	return all
}
