package nvml

import (
	"sync/atomic"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// stepDelay is how long a step may delay the steps about other GPUs. NVML is thread-safe, but except for trials and
// commands, only one goroutine calls it while the driver responds.
const stepDelay = 100 * time.Millisecond

// step runs calls and records them in the step log as s. On entry, s.Start is how long the calls wait intentionally, 0
// for calls that do not wait; their timeout starts after that time.
func (w *worker) step(s driver.Step, calls func()) error {
	s.Start += driver.Clock()
	if err := w.stepLog.Set(s); err != nil {
		return err
	}
	calls()
	s.Done = true
	return w.stepLog.Set(s)
}

// steps is a set of steps, each about one GPU.
type steps struct {
	w       *worker
	indexes []int
	kind    driver.Kind
	calls   func(i int)            // i is the position in indexes
	onDone  func(i int, err error) // called after each step, by any goroutine; err is that of the step log

	started, finished atomic.Int64
	done              chan struct{} // closed when all are done
}

func (w *worker) steps(indexes []int, calls func(i int)) *steps {
	s := &steps{w: w, indexes: indexes, calls: calls, done: make(chan struct{})}
	if len(indexes) == 0 {
		close(s.done)
	}
	return s
}

// run runs the remaining steps, one after the other. It is safe for concurrent use.
func (s *steps) run() {
	for i := int(s.started.Add(1)) - 1; i < len(s.indexes); i = int(s.started.Add(1)) - 1 {
		err := s.w.step(driver.Step{Index: s.indexes[i], Kind: s.kind}, func() { s.calls(i) })
		s.onDone(i, err)
		if int(s.finished.Add(1)) == len(s.indexes) {
			close(s.done)
		}
	}
}

// unblock starts another goroutine for the remaining steps whenever a step has delayed them for stepDelay. It calls
// poll every stepDelay until all steps are done.
func (s *steps) unblock(poll func()) {
	check := time.NewTicker(stepDelay)
	defer check.Stop()
	for before := s.started.Load(); ; {
		select {
		case <-s.done:
			return
		case <-check.C:
		}
		now := s.started.Load()
		if now == before && now < int64(len(s.indexes)) {
			go s.run()
		}
		before = now
		poll()
	}
}

// each runs a step about each of the GPUs and waits for all of them. If a step blocks the calling goroutine, which owns
// the worker, other goroutines run the remaining steps and report XIDs. No goroutine is started while the driver
// responds, because starting it would take longer than the calls.
func (w *worker) each(indexes []int, calls func(i int)) error {
	s := w.steps(indexes, calls)
	var firstErr errorOnce
	s.onDone = func(_ int, err error) { firstErr.set(err) }
	unblocked := make(chan struct{})
	timer := time.AfterFunc(stepDelay, func() {
		defer close(unblocked)
		s.unblock(func() { firstErr.set(w.pollEvents()) })
	})
	s.run()
	if !timer.Stop() {
		<-unblocked
	}
	return firstErr.get()
}

// trialResult reports the end of a trial, which tests whether a quarantined GPU has recovered.
type trialResult struct {
	index int
	err   error // of the step log
}

// startTrials starts a goroutine that runs a trial of each of the GPUs, one after the other; if a trial blocks, another
// goroutine runs the remaining ones. The channel receives the results.
func (w *worker) startTrials(indexes []int, calls func(i int)) <-chan trialResult {
	results := make(chan trialResult, len(indexes))
	s := w.steps(indexes, calls)
	s.kind, s.onDone = driver.Trial, func(i int, err error) { results <- trialResult{indexes[i], err} }
	go s.run()
	go s.unblock(func() {})
	return results
}

// errorOnce keeps the first error. It is safe for concurrent use.
type errorOnce struct{ err atomic.Pointer[error] }

func (e *errorOnce) set(err error) {
	if err != nil {
		e.err.CompareAndSwap(nil, &err)
	}
}

func (e *errorOnce) get() error {
	if err := e.err.Load(); err != nil {
		return *err
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
