package driver

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// trialPause is the longest time between the start of a worker and its trial of doubted GPUs.
const trialPause = time.Minute

// doubt is about a GPU that held up a call or ended a worker. A worker asks it only after all others.
type doubt struct {
	fault gpu.Fault
	times int // that it was to blame in a row
}

// blame doubts GPUs and reports them. Where Nobody is to blame, every GPU is concerned, and why is
// returned.
func (s *source) blame(indexes []int, why error) error {
	fault := gpu.Fault{Code: gpu.FaultUnresponsive, Message: why.Error(), Remedy: gpu.RemedyKernelLog}
	if slices.Contains(indexes, Nobody) {
		fault.Code = gpu.FaultDriver // as that of the Reading that follows
		s.yield(Trouble{Fault: fault})
		return why
	}
	for _, index := range indexes {
		s.doubted[index] = doubt{fault, s.doubted[index].times + 1}
		if g := s.known(index); g != nil {
			s.yield(Trouble{GPU: g.UUID, Fault: fault})
		}
	}
	return nil
}

// acquit drops the doubts about GPUs that came back from their trial, before their worker was lost.
func (s *source) acquit(p *process) {
	for _, step := range p.marker.steps() {
		if step.Trial && step.Back {
			delete(s.doubted, step.Index)
		}
	}
}

// known is the GPU that has an index in the latest inventory; nil when there is none.
func (s *source) known(index int) *gpu.GPU {
	if s.latest == nil {
		return nil
	}
	i := slices.IndexFunc(s.latest.GPUs, func(g gpu.GPU) bool { return g.Index == index })
	if i < 0 {
		return nil
	}
	return &s.latest.GPUs[i]
}

// trialOrder are the doubted GPUs, those first that were to blame least often: a trial that ends the
// worker is the last one of that worker, and would else keep the others from theirs for ever.
func (s *source) trialOrder() []int {
	return slices.SortedFunc(maps.Keys(s.doubted), func(a, b int) int {
		return cmp.Or(cmp.Compare(s.doubted[a].times, s.doubted[b].times), cmp.Compare(a, b))
	})
}

// doubts are a worker's arguments about the doubted GPUs. The more often one was to blame, the later
// it is tried again: a trial that ends the worker costs the other GPUs the XIDs of that moment. While
// a worker hangs in the kernel there is none: one that hangs there too would cost all GPUs.
func (s *source) doubts() (args []string) {
	pause := s.cfg.Interval
	for _, index := range s.trialOrder() {
		args = append(args, "--doubted", strconv.Itoa(index))
		pause = max(pause, min(s.cfg.Interval<<min(s.doubted[index].times-1, 10), trialPause))
	}
	if s.stuck != nil {
		pause = 0
	}
	return append(args, "--trial-after", pause.String())
}

// complete adds the doubted GPUs to an inventory that leaves them out, as they were last read. One
// that was read, whether it could be or not, is doubted no more.
func (s *source) complete(read *gpu.Inventory) *gpu.Inventory {
	whole := *read
	for index, d := range s.doubted {
		known := s.known(index)
		if slices.ContainsFunc(read.GPUs, func(g gpu.GPU) bool { return g.Index == index || known != nil && g.UUID == known.UUID }) ||
			slices.ContainsFunc(read.Unreadable, func(u gpu.Unreadable) bool { return u.Index == index }) {
			delete(s.doubted, index)
			continue
		}
		if known == nil {
			whole.Unreadable = append(whole.Unreadable, gpu.Unreadable{Index: index, Fault: d.fault})
			continue
		}
		g := *known
		g.Fault = d.fault
		whole.GPUs = append(whole.GPUs, g)
	}
	slices.SortFunc(whole.GPUs, func(a, b gpu.GPU) int { return a.Index - b.Index })
	slices.SortFunc(whole.Unreadable, func(a, b gpu.Unreadable) int { return a.Index - b.Index })
	return &whole
}
