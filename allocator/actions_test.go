package allocator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// action is one event in the world, with its argument.
type action struct{ kind, arg uint8 }

type kind struct {
	name   string
	args   uint8
	weight int
	do     func(w *world, arg uint8) bool
}

// kinds are the kinds of actions, each with the number of values of its argument, its weight in random sequences, and
// its effect. An action that is not possible now returns false and changes nothing. With anyOf, the argument is an
// index, and the action applies to the first object from that index on for which it is possible.
var kinds = []kind{
	{"reconcile", 1, 4, func(w *world, _ uint8) bool { return w.reconcile(true) }},
	{"reconcile, not saved", 1, 1, func(w *world, _ uint8) bool { return w.reconcile(false) }},
	{"close", 1, 4, func(w *world, _ uint8) bool { return w.closeEntries() }},
	{"run agent", 1, 14, func(w *world, _ uint8) bool { return w.runAgent(false) }},
	{"run agent, grant late", 1, 2, func(w *world, _ uint8) bool { return w.runAgent(true) }},
	{"send", outlets, 3, anyOf(outlets, func(w *world, i uint8) bool { return w.send(i, false) })},
	{"resend", outlets, 1, anyOf(outlets, func(w *world, i uint8) bool { return w.send(i, true) })},
	{"query", sources, 2, (*world).query},
	{"deliver", sources, 3, anyOf(sources, (*world).deliver)},
	{"write spec", 1, 2, func(w *world, _ uint8) bool { return w.writeSpec() }},
	{"restart agent", 1, 1, func(w *world, _ uint8) bool { return w.restartAgent(true, true) }},
	{"restart agent, no state", 1, 1, func(w *world, _ uint8) bool { return w.restartAgent(false, true) }},
	{"restart agent, no records", 1, 1, func(w *world, _ uint8) bool { return w.restartAgent(true, false) }},
	{"configure", configs, 3, (*world).configure},
	{"partition", layouts, 2, (*world).partition},
	{"create", uint8(len(keys)), 6, anyOf(uint8(len(keys)), func(w *world, i uint8) bool { return w.create(i, false) })},
	{"create init", uint8(len(keys)), 2, anyOf(uint8(len(keys)), func(w *world, i uint8) bool { return w.create(i, true) })},
	{"allocate", podSlots, 5, anyOf(podSlots, (*world).allocate)},
	{"insert", podSlots, 5, anyOf(podSlots, (*world).insert)},
	{"write", podSlots, 5, anyOf(podSlots, (*world).write)},
	{"land", 3, 5, anyOf(3, (*world).land)},
	{"start", podSlots, 4, anyOf(podSlots, (*world).start)},
	{"appear", podSlots, 4, anyOf(podSlots, (*world).appear)},
	{"crash", podSlots, 1, anyOf(podSlots, (*world).crash)},
	{"end", podSlots, 2, anyOf(podSlots, (*world).end)},
	{"force", podSlots, 2, anyOf(podSlots, (*world).force)},
	{"stop", podSlots, 2, anyOf(podSlots, (*world).stop)},
	{"hang", podSlots, 3, anyOf(podSlots, (*world).hang)},
	{"stall", 1, 1, func(w *world, _ uint8) bool { return w.stall() }},
	{"process", outlets, 6, anyOf(outlets, func(w *world, i uint8) bool { return w.process(i, false) })},
	{"process old", outlets, 1, anyOf(outlets, func(w *world, i uint8) bool { return w.process(i, true) })},
	{"drop old", outlets, 1, anyOf(outlets, (*world).dropStale)},
	{"connect", outlets, 2, anyOf(outlets, (*world).connect)},
	{"disconnect", outlets, 1, (*world).disconnect},
	{"publish", 1, 2, func(w *world, _ uint8) bool { return w.publish() }},
	{"watch slice", 1, 2, func(w *world, _ uint8) bool { return w.watchSlice() }},
	{"schedule", uint8(len(requests)), 5, anyOf(uint8(len(requests)), func(w *world, i uint8) bool { return w.schedule(requests[i]) })},
	{"join", podSlots, 3, anyOf(podSlots, (*world).join)},
	{"prepare", podSlots, 5, anyOf(podSlots, (*world).prepare)},
	{"unprepare", podSlots, 4, anyOf(podSlots, (*world).unprepare)},
	{"get ready", 1, 1, func(w *world, _ uint8) bool { return w.getReady() }},
	{"restart kubelet", 1, 1, func(w *world, _ uint8) bool { return w.restartKubelet() }},
	{"pass", 1, 14, func(w *world, _ uint8) bool { return w.pass() }},
	{"run kubelet", 1, 6, func(w *world, _ uint8) bool { return w.runKubelet() }},
	{"rounds", 8, 8, (*world).rounds},
	{"long pass", 1, 1, func(w *world, _ uint8) bool { return w.longPass() }},
}

// anyOf applies an action to the first of n objects, from an index on, for which it is possible.
func anyOf(n uint8, do func(*world, uint8) bool) func(*world, uint8) bool {
	return func(w *world, from uint8) bool {
		for i := range n {
			if do(w, (from+i)%n) {
				return true
			}
		}
		return false
	}
}

func (a action) String() string { return fmt.Sprintf("%s %d", kinds[a.kind].name, a.arg) }

func (w *world) do(a action) bool { return kinds[a.kind].do(w, a.arg) }

// swarm draws the actions of one sequence (swarm testing). Each sequence omits some kinds and prefers others, because a
// kind can hide failures.
type swarm struct {
	*rand.Rand
	tickets []uint8
}

func newSwarm(r *rand.Rand) *swarm {
	s := &swarm{Rand: r}
	for kind, k := range kinds {
		for range k.weight * [...]int{0, 1, 1, 3}[r.IntN(4)] {
			s.tickets = append(s.tickets, uint8(kind))
		}
	}
	return s
}

func (s *swarm) draw() action {
	kind := s.tickets[s.IntN(len(s.tickets))]
	return action{kind, uint8(s.IntN(int(kinds[kind].args)))}
}

// runKubelet performs all pending steps of the kubelet and the runtime. For pods that hang, and for lists while the
// kubelet is slow, it performs only those that settle or listLag makes due.
func (w *world) runKubelet() bool {
	for i := range uint8(outlets) {
		for q := &w.streams[i].queue[0]; q.valid && (!w.slow || q.at+lag <= w.tick+1) && w.process(i, false); {
			w.landAll()
		}
	}
	for i := range uint8(podSlots) {
		p := &w.pods[i]
		due := !p.hangs || p.since < w.tick
		_ = (!p.hangs || w.overdue(p)) && w.allocate(i)
		_ = due && w.insert(i)
		_ = !p.hangs && w.write(i)
		_ = !p.hangs && w.prepare(i)
		w.landAll()
		_ = !p.hangs && w.start(i)
		_ = (!p.hangs || due && p.reference == unreferenced && !w.tracks(p)) && w.appear(i)
	}
	for i := range uint8(podSlots) {
		_ = w.pods[i].container == absent && w.unprepare(i)
	}
	return true
}

// hang makes the admission of a pod hang, or continue.
func (w *world) hang(slot uint8) bool {
	if w.pods[slot].uid == 0 {
		return false
	}
	w.pods[slot].hangs = !w.pods[slot].hangs
	return true
}

// stall makes the kubelet process lists as late as listLag allows, or at once.
func (w *world) stall() bool {
	w.slow = !w.slow
	return true
}

// rounds runs kubelet and agent for some ticks.
func (w *world) rounds(more uint8) bool {
	for range more + 1 {
		w.runKubelet()
		w.runAgent(false)
		w.pass()
	}
	return true
}

// landAll renames all pending checkpoints into place.
func (w *world) landAll() {
	for i := range w.writes {
		w.land(uint8(i))
	}
}

// longPass lets as many ticks pass as possible, up to the time after which a released entry is no longer listed.
func (w *world) longPass() bool {
	if !w.pass() {
		return false
	}
	for range lag + 2 {
		if !w.pass() {
			break
		}
	}
	return true
}

// converge ends all pods, or only those that hold unwanted devices, and runs agent and kubelet until the ledger matches
// the plan. It fails if that does not happen within convergeRounds.
func (w *world) converge(all bool) {
	wanted := planOf(w.config, w.layout) // without the devices that claims need only until they are prepared
	w.slow = false
	for i := range uint8(podSlots) {
		w.pods[i].hangs = false
		w.allocate(i)
		w.insert(i)
		w.write(i)
		w.landAll()
		if p := &w.pods[i]; all || !p.active || !wanted.has(p.key, p.part) || sliced(p.key) && !wanted.has(p.key, w.parts[p.key]) {
			w.appear(i)
			w.force(i)
			w.stop(i)
		}
	}
	w.getReady()
	for range convergeRounds {
		for i := range uint8(outlets) {
			_ = w.process(i, true)
			w.landAll()
		}
		w.runKubelet()
		w.runAgent(false)
		if w.violation != "" || w.converged(w.plan()) {
			return
		}
		w.pass()
	}
	w.fail("the ledger does not match the plan after %d rounds", convergeRounds)
}

// convergeRounds covers requestPeriod, listLag and a release after a start without state.
const convergeRounds = int(requestPeriod/tick) + int(lag) + 40

func (w *world) converged(wanted planned) bool {
	if len(w.ledger.entries) != len(wanted) || !w.ledger.Complete() {
		return false
	}
	for i, o := range wanted {
		if e := w.ledger.entries[i]; e.Key != keys[o.key].Key || e.State != StateAvailable || e.Part != parts[o.part] {
			return false
		}
	}
	return true
}

// script formats a sequence for parseScript.
func script(actions []action) string {
	var steps []string
	for _, a := range actions {
		if kinds[a.kind].args == 1 {
			steps = append(steps, kinds[a.kind].name)
			continue
		}
		steps = append(steps, fmt.Sprintf("%s %d", kinds[a.kind].name, a.arg))
	}
	return strings.Join(steps, "; ")
}

func parseScript(text string) (actions []action, err error) {
	for step := range strings.SplitSeq(text, ";") {
		step = strings.TrimSpace(step)
		kind := slices.IndexFunc(kinds, func(k kind) bool { return k.name == strings.TrimRight(step, " 0123456789") })
		if kind < 0 {
			return nil, fmt.Errorf("unknown action %q", step)
		}
		arg := 0
		if number := step[len(kinds[kind].name):]; number != "" {
			if arg, err = strconv.Atoi(strings.TrimSpace(number)); err != nil {
				return nil, err
			}
		}
		actions = append(actions, action{uint8(kind), uint8(arg)})
	}
	return actions, nil
}

// trace runs a sequence, and returns the world after each action.
func trace(actions []action) string {
	var lines strings.Builder
	w := newWorld()
	for _, a := range actions {
		done := w.do(a)
		fmt.Fprintf(&lines, "%v (%v)\n  %v", a, done, w)
	}
	return lines.String()
}
