package driver

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// maxTrialDelay is the longest time between the start of a worker and its trial of quarantined GPUs, unless
// Config.Interval is longer.
const maxTrialDelay = time.Minute

// quarantineEntry describes a GPU whose calls hung or crashed a worker. Workers exclude it from their probe cycles
// until a trial succeeds.
type quarantineEntry struct {
	fault    gpu.Fault
	failures int // consecutive
}

// quarantine adds GPUs to the quarantine, and reports a Failure for each that the latest inventory contains. If indexes
// contains NoGPU, the failure affects all GPUs: quarantine adds none, reports one Failure and returns cause.
func (s *source) quarantine(indexes []int, cause error) error {
	fault := gpu.Fault{Code: gpu.FaultUnresponsive, Message: cause.Error(), Remedy: gpu.RemedyKernelLog}
	if slices.Contains(indexes, NoGPU) {
		fault.Code = gpu.FaultDriver // as in the fault that the agent derives from the Err of the next Snapshot
		s.yield(Failure{Fault: fault})
		return cause
	}
	slices.Sort(indexes)
	for _, index := range slices.Compact(indexes) { // a GPU may have a step of each kind
		s.quarantined[index] = quarantineEntry{fault, s.quarantined[index].failures + 1}
		if g := s.lastKnown(index); g != nil {
			s.yield(Failure{GPU: g.UUID, Fault: fault})
		}
	}
	return nil
}

// admitRecovered ends the quarantine of the GPUs whose trial succeeded before the worker failed.
func (s *source) admitRecovered(p *process) {
	for _, step := range p.stepLog.steps() {
		if step.Kind == Trial && step.Done {
			delete(s.quarantined, step.Index)
		}
	}
}

// lastKnown returns the GPU with that index in the latest inventory, or nil.
func (s *source) lastKnown(index int) *gpu.GPU {
	if s.latest == nil {
		return nil
	}
	i := slices.IndexFunc(s.latest.GPUs, func(g gpu.GPU) bool { return g.Index == index })
	if i < 0 {
		return nil
	}
	return &s.latest.GPUs[i]
}

// trialOrder returns the indexes of the quarantined GPUs by ascending number of failures. A trial that crashes the
// worker prevents all later ones, so a GPU that always fails must not come first.
func (s *source) trialOrder() []int {
	return slices.SortedFunc(maps.Keys(s.quarantined), func(a, b int) int {
		return cmp.Or(cmp.Compare(s.quarantined[a].failures, s.quarantined[b].failures), cmp.Compare(a, b))
	})
}

// quarantineArgs returns the worker's arguments about quarantined GPUs. The delay of the trials doubles with each
// failure, because XIDs of the other GPUs are lost when a trial crashes the worker. While a worker hangs in the kernel
// there are no trials: if a second worker hung there, too, all GPUs would be unavailable.
func (s *source) quarantineArgs() (args []string) {
	delay := s.cfg.Interval
	for _, index := range s.trialOrder() {
		args = append(args, "--quarantined", strconv.Itoa(index))
		delay = max(delay, min(s.cfg.Interval<<min(s.quarantined[index].failures-1, 10), maxTrialDelay))
	}
	if s.stuck != nil {
		delay = 0
	}
	return append(args, "--trial-after", delay.String())
}

// addQuarantined returns a worker's inventory with the quarantined GPUs added, as last known and with their fault. It
// ends the quarantine of GPUs that the worker's inventory contains.
func (s *source) addQuarantined(read *gpu.Inventory) *gpu.Inventory {
	all := *read
	for index, entry := range s.quarantined {
		known := s.lastKnown(index)
		if slices.ContainsFunc(read.GPUs, func(g gpu.GPU) bool { return g.Index == index || known != nil && g.UUID == known.UUID }) ||
			slices.ContainsFunc(read.Unreadable, func(u gpu.Unreadable) bool { return u.Index == index }) {
			delete(s.quarantined, index)
			continue
		}
		if known == nil {
			all.Unreadable = append(all.Unreadable, gpu.Unreadable{Index: index, Fault: entry.fault})
			continue
		}
		g := *known
		g.Fault = entry.fault
		all.GPUs = append(all.GPUs, g)
	}
	slices.SortFunc(all.GPUs, func(a, b gpu.GPU) int { return a.Index - b.Index })
	slices.SortFunc(all.Unreadable, func(a, b gpu.Unreadable) int { return a.Index - b.Index })
	return &all
}
