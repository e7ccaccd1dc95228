package allocator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// modelSequences is low because TestModel also runs under the race detector; TestRules runs more.
	modelSequences = 5_000
	modelSteps     = 60 // actions to draw for a sequence
	convergeEvery  = 8  // of this many sequences, one ends with convergeWithoutPods, one with convergeWithPods
	slicedMIGEvery = 5  // of this many sequences, one begins with slicedMIGStart
)

// slicedMIGStart offers two MIG devices in the slice, to which random actions seldom lead.
const slicedMIGStart = "configure 5; partition 1; rounds 3"

// ending is what follows the last action of a sequence.
type ending int64

const (
	endAtOnce           ending = iota
	convergeWithoutPods        // end all pods, then converge
	convergeWithPods           // end the pods that hold unwanted devices, then converge
)

// run runs a sequence, and returns the property that it violates; empty for none.
func run(actions []action, end ending) string {
	w := newWorld()
	w.doAll(actions)
	if end != endAtOnce && w.violation == "" {
		w.converge(end == convergeWithoutPods)
	}
	return w.violation
}

// doAll performs actions until one violates a property.
func (w *world) doAll(actions []action) {
	for _, a := range actions {
		if w.do(a); w.violation != "" {
			return
		}
	}
}

// shrink removes actions while the sequence still violates a property.
func shrink(actions []action, end ending) []action {
	for size := len(actions) / 2; size > 0; {
		removed := false
		for i := 0; i+size <= len(actions); {
			without := append(append([]action(nil), actions[:i]...), actions[i+size:]...)
			if run(without, end) != "" {
				actions, removed = without, true
			} else {
				i++
			}
		}
		if !removed || size > len(actions) {
			size /= 2
		}
	}
	return actions
}

// findFailure runs random sequences in parallel, and returns one that violates a property; nil if none does.
func findFailure(seed uint64, sequences int) (actions []action, end ending) {
	start, err := parseScript(slicedMIGStart)
	if err != nil {
		panic(err)
	}
	var next atomic.Int64
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(sequences); i = next.Add(1) {
				draws := newSwarm(rand.New(rand.NewPCG(seed, uint64(i))))
				w := newWorld()
				var done []action
				if i%slicedMIGEvery == 0 {
					done = slices.Clone(start)
					w.doAll(start)
				}
				for steps := 0; steps < modelSteps && w.violation == ""; steps++ {
					if a := draws.draw(); w.do(a) {
						done = append(done, a)
					}
				}
				sequenceEnd := max(endAtOnce, convergeWithPods-ending(i%convergeEvery))
				if w.violation == "" && sequenceEnd != endAtOnce {
					w.converge(sequenceEnd == convergeWithoutPods)
				}
				if w.violation != "" {
					next.Store(int64(sequences))
					mu.Lock()
					if actions == nil {
						actions, end = done, sequenceEnd
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	workers.Wait()
	return actions, end
}

func TestScripts(t *testing.T) {
	for name, text := range scripts {
		t.Run(name, func(t *testing.T) {
			actions, err := parseScript(text)
			if err != nil {
				t.Fatal(err)
			}
			if violation := run(actions, convergeWithPods); violation != "" {
				t.Errorf("%s\n%s", violation, trace(actions))
			}
		})
	}
}

// TestModel runs random sequences, MODEL_SEQUENCES of them. MODEL_SEED reproduces a failure.
func TestModel(t *testing.T) {
	seed := envUint(t, "MODEL_SEED", uint64(time.Now().UnixNano()))
	t.Logf("MODEL_SEED=%d", seed)
	actions, end := findFailure(seed, int(envUint(t, "MODEL_SEQUENCES", modelSequences)))
	if actions == nil {
		return
	}
	actions = shrink(actions, end)
	t.Errorf("%s\nending %d: %s\n%s", run(actions, end), end, script(actions), trace(actions))
}

func envUint(t *testing.T, name string, defaultValue uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return defaultValue
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Neither missing evidence nor a repeated observation changes a state.
func TestNextRequiresEvidence(t *testing.T) {
	states := func(l Ledger) (states []string) {
		for e := range l.Entries() {
			states = append(states, fmt.Sprintf("%v %v %v %v", e.Key, e.Part, e.State, e.Drain))
		}
		return states
	}
	for i := range uint64(2_000) {
		draws := newSwarm(rand.New(rand.NewPCG(1, i)))
		w := newWorld()
		for range modelSteps {
			w.do(draws.draw())
		}
		o := w.observation()
		before, _ := Next(w.ledger, o, w.now())
		again, _ := Next(before, o, w.now())
		if !slices.Equal(states(again), states(before)) {
			t.Fatalf("the same observation changes\n%q to\n%q", states(before), states(again))
		}
		without, todo := Next(before, Observation{Wanted: o.Wanted, Present: o.Present, Grants: o.Grants}, w.now())
		if !slices.Equal(states(without), states(before)) {
			t.Fatalf("without evidence, %v changes to %v", states(before), states(without))
		}
		for _, c := range todo.Close {
			if e, _ := before.Entry(c.Key); e.dirty {
				t.Fatalf("%v is closed without evidence", c.Key)
			}
		}
	}
}
