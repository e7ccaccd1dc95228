package driver

import (
	"cmp"
	"slices"
	"time"
)

// trialTimeout is how long the trial of a doubted GPU may take before a new worker makes it. Until
// then the worker is left alone, since XIDs are lost while it is replaced.
const trialTimeout = 5 * time.Minute

// lateness is how late a check of the marker may be. After a longer time the agent itself was stopped,
// and maybe the worker with it, as when their cgroup is frozen.
const lateness = time.Second

// check returns the GPUs to blame for overdue steps, or else the time until the next check.
func (s *source) check(p *process) (blamed []int, next time.Duration) {
	now, steps := Clock(), p.marker.steps()
	blamed = hung(steps, now, s.cfg.CallWithin, s.held)
	// A worker always makes or awaits a step, but for moments, and when it waits for this process to
	// read its messages. One that does not is stopped.
	quiet := !slices.ContainsFunc(steps, func(s Step) bool { return !s.Back })
	if quiet && p.quiet {
		blamed = []int{Nobody}
	}
	p.quiet = quiet
	switch late := p.due > 0 && now-p.due > lateness; {
	case len(blamed) == 0:
		next = nextCheck(steps, now, s.cfg.CallWithin)
		p.due = now + next
		return nil, next
	case late:
		p.due = 0 // not a second time
		return nil, lateness
	}
	s.held = nil
	for _, step := range pending(steps, now) {
		if !step.Trial && !slices.Contains(blamed, step.Index) {
			s.held = append(s.held, step.Index)
		}
	}
	return blamed, 0
}

// pending returns the steps that have begun and are not back, the earliest first.
func pending(steps []Step, now time.Duration) (open []Step) {
	for _, s := range steps {
		if !s.Back && s.Begin <= now {
			open = append(open, s)
		}
	}
	slices.SortStableFunc(open, func(a, b Step) int { return cmp.Compare(a.Begin, b.Begin) })
	return open
}

// hung returns the GPUs, or Nobody, that are to blame for steps which are overdue at now; none is
// while no step is. held are those that were pending without blame when the last worker was
// replaced.
//
// A call that hangs may hold a lock, in the kernel or in NVML, that later calls wait for. So a step
// is to blame only if it held up no other, since a step that began later is back; or if it is the
// first of those of which this is not known; or if it was held up in the last worker too, without
// the GPU that was to blame there.
func hung(steps []Step, now, callTimeout time.Duration, held []int) (blamed []int) {
	var answered time.Duration // when the latest step about a GPU that is back began
	for _, s := range steps {
		if s.Back && s.Index != Nobody {
			answered = max(answered, s.Begin)
		}
	}
	overdue := func(s Step) bool {
		if s.Trial {
			return now-s.Begin >= trialTimeout
		}
		return now-s.Begin >= callTimeout
	}
	open := pending(steps, now)
	first := slices.IndexFunc(open, func(s Step) bool { return s.Begin >= answered })
	if first < 0 {
		first = len(open)
	}
	for _, s := range open[:first] {
		if overdue(s) {
			blamed = append(blamed, s.Index)
		}
	}
	if !slices.ContainsFunc(open[first:], overdue) {
		return blamed
	}
	blamed = append(blamed, open[first].Index)
	for _, s := range open[first+1:] {
		if slices.Contains(held, s.Index) {
			blamed = append(blamed, s.Index)
		}
	}
	return blamed
}

// nextCheck is how long after now a step can be overdue at the earliest, if none is at now.
func nextCheck(steps []Step, now, callTimeout time.Duration) time.Duration {
	next := callTimeout // of a step that begins right after now
	for _, s := range pending(steps, now) {
		if !s.Trial {
			next = min(next, s.Begin+callTimeout-now)
		}
	}
	return next
}

// crashed returns the GPUs, or Nobody, that are to blame for the end of a worker. A trial is the
// likeliest cause; a step about Nobody, such as waiting for events, is the least likely one.
func crashed(steps []Step, now time.Duration) (blamed []int) {
	open := pending(steps, now)
	trials := slices.DeleteFunc(slices.Clone(open), func(s Step) bool { return !s.Trial })
	about := slices.DeleteFunc(open, func(s Step) bool { return s.Index == Nobody })
	if len(trials) > 0 {
		about = trials
	}
	for _, s := range about {
		blamed = append(blamed, s.Index)
	}
	if len(blamed) == 0 {
		return []int{Nobody}
	}
	return blamed
}
