package driver

import (
	"cmp"
	"slices"
	"time"
)

// trialTimeout is the call timeout of a trial. It is long, because after a timeout the worker must be replaced, and
// XIDs are lost meanwhile.
const trialTimeout = 5 * time.Minute

// maxCheckDelay is how late a check of the step log may be. If a check is later, gpucdi and perhaps the worker were
// suspended, for example by the cgroup freezer.
const maxCheckDelay = time.Second

// check returns the indexes of the GPUs whose calls hang, or the time until the next check if there are none.
func (s *source) check(p *process) (failed []int, next time.Duration) {
	now, steps := Clock(), p.stepLog.steps()
	failed = hung(steps, now, s.cfg.CallTimeout, p.blocked)
	// Between two steps a worker is idle only briefly, or while it waits for gpucdi to read its messages. If it is idle
	// at two consecutive checks without a message in between, it hangs.
	idle := !slices.ContainsFunc(steps, func(s Step) bool { return !s.Done })
	if idle && p.idle {
		failed = []int{NoGPU}
	}
	p.idle = idle
	switch late := p.due > 0 && now-p.due > maxCheckDelay; {
	case len(failed) == 0:
		next = nextCheck(steps, now, s.cfg.CallTimeout)
		p.due = now + next
		return nil, next
	case late:
		p.due = 0 // postpone once only
		return nil, maxCheckDelay
	}
	for _, step := range pending(steps, now) {
		if step.Kind != Trial && !slices.Contains(failed, step.Index) {
			s.blocked = append(s.blocked, step.Index)
		}
	}
	return failed, 0
}

// pending returns the steps that have started and are not done, in the order of their start.
func pending(steps []Step, now time.Duration) (open []Step) {
	for _, s := range steps {
		if !s.Done && s.Start <= now {
			open = append(open, s)
		}
	}
	slices.SortStableFunc(open, func(a, b Step) int { return cmp.Compare(a.Start, b.Start) })
	return open
}

// hung returns the indexes of the GPUs that cause the overdue steps; they may include NoGPU. blocked are the indexes of
// the steps that were pending when the previous worker was replaced, except trials and the cause of the replacement.
//
// A call that hangs may hold a lock, in the kernel or in NVML, that blocks later calls. If a later step about any GPU
// is done, a pending step does not block others, and is a cause once it is overdue itself. The remaining pending steps
// may wait for each other. If one of them is overdue, the causes are the first of them, and those in blocked: they are
// pending again although this worker excludes the previous cause.
func hung(steps []Step, now, callTimeout time.Duration, blocked []int) (failed []int) {
	var lastDone time.Duration // start of the latest step about a GPU that is done
	for _, s := range steps {
		if s.Done && s.Index != NoGPU {
			lastDone = max(lastDone, s.Start)
		}
	}
	overdue := func(s Step) bool {
		if s.Kind == Trial {
			return now-s.Start >= trialTimeout
		}
		return now-s.Start >= callTimeout
	}
	open := pending(steps, now)
	first := slices.IndexFunc(open, func(s Step) bool { return s.Start >= lastDone })
	if first < 0 {
		first = len(open)
	}
	for _, s := range open[:first] {
		if overdue(s) {
			failed = append(failed, s.Index)
		}
	}
	if !slices.ContainsFunc(open[first:], overdue) {
		return failed
	}
	failed = append(failed, open[first].Index)
	for _, s := range open[first+1:] {
		if slices.Contains(blocked, s.Index) {
			failed = append(failed, s.Index)
		}
	}
	return failed
}

// nextCheck returns the time from now until a step other than a trial can be overdue, given that none is; at most
// callTimeout.
func nextCheck(steps []Step, now, callTimeout time.Duration) time.Duration {
	next := callTimeout // of a step that starts right after now
	for _, s := range pending(steps, now) {
		if s.Kind != Trial {
			next = min(next, s.Start+callTimeout-now)
		}
	}
	return next
}

// crashed returns the indexes of the GPUs whose pending steps may have crashed the worker, or NoGPU if there are none.
// Trials are the most likely cause, and settings more likely than probe cycles, whose calls have succeeded before;
// steps about NoGPU, such as waiting for events, are the least likely.
func crashed(steps []Step, now time.Duration) (failed []int) {
	open := slices.DeleteFunc(pending(steps, now), func(s Step) bool { return s.Index == NoGPU })
	likely := open
	for _, kind := range []Kind{Setting, Trial} {
		if ofKind := slices.DeleteFunc(slices.Clone(open), func(s Step) bool { return s.Kind != kind }); len(ofKind) > 0 {
			likely = ofKind
		}
	}
	for _, s := range likely {
		failed = append(failed, s.Index)
	}
	if len(failed) == 0 {
		return []int{NoGPU}
	}
	return failed
}
