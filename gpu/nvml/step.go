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

// steps are a step about each of several GPUs.
type steps struct {
	w       *worker
	indexes []int
	trial   bool
	calls   func(i int)            // gets the position in indexes
	over    func(i int, err error) // is told of each step that is over, by any goroutine; err is of marking it

	begun, back atomic.Int64
	done        chan struct{} // closed when all are over
}

func (w *worker) steps(indexes []int, calls func(i int)) *steps {
	s := &steps{w: w, indexes: indexes, calls: calls, done: make(chan struct{})}
	if len(indexes) == 0 {
		close(s.done)
	}
	return s
}

// make makes those steps that have not begun, one after the other.
func (s *steps) make() {
	for i := int(s.begun.Add(1)) - 1; i < len(s.indexes); i = int(s.begun.Add(1)) - 1 {
		err := s.w.step(driver.Step{Index: s.indexes[i], Trial: s.trial}, func() { s.calls(i) })
		s.over(i, err)
		if int(s.back.Add(1)) == len(s.indexes) {
			close(s.done)
		}
	}
}

// relieve makes the steps that have not begun whenever one has held up the others for longer than
// patience, and calls meanwhile in between, until all are over.
func (s *steps) relieve(meanwhile func()) {
	check := time.NewTicker(patience)
	defer check.Stop()
	for before := s.begun.Load(); ; {
		select {
		case <-s.done:
			return
		case <-check.C:
		}
		now := s.begun.Load()
		if now == before && now < int64(len(s.indexes)) {
			go s.make()
		}
		before = now
		meanwhile()
	}
}

// each makes a step about each of several GPUs and waits for all. While one holds it up, other goroutines
// go on, and XIDs are reported: by one of them, since the goroutine that owns the worker is held up.
// Nothing is handed to another goroutine while the driver answers: that would cost more than the calls.
func (w *worker) each(indexes []int, calls func(i int)) error {
	s := w.steps(indexes, calls)
	var failed failure
	s.over = func(_ int, err error) { failed.set(err) }
	relieved := make(chan struct{})
	relief := time.AfterFunc(patience, func() {
		defer close(relieved)
		s.relieve(func() { failed.set(w.pollEvents()) })
	})
	s.make()
	if !relief.Stop() {
		<-relieved
	}
	return failed.first()
}

// outcome is the end of a step about a GPU.
type outcome struct {
	index int
	err   error // of marking it
}

// try makes a step about each of several GPUs, in goroutines of its own, and returns where the outcomes
// arrive.
func (w *worker) try(indexes []int, calls func(i int)) <-chan outcome {
	outcomes := make(chan outcome, len(indexes))
	s := w.steps(indexes, calls)
	s.trial, s.over = true, func(i int, err error) { outcomes <- outcome{indexes[i], err} }
	go s.make()
	go s.relieve(func() {})
	return outcomes
}

// failure keeps the first error of several goroutines.
type failure struct{ err atomic.Pointer[error] }

func (f *failure) set(err error) {
	if err != nil {
		f.err.CompareAndSwap(nil, &err)
	}
}

func (f *failure) first() error {
	if err := f.err.Load(); err != nil {
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
