package allocator

import (
	"hash/maphash"
	"testing"
	"time"
)

// breadthDepth is the search depth of TestModelBreadth.
const breadthDepth = 5

// breadthActions are the actions of TestModelBreadth. kinds describes them and their arguments. The two configs
// advertise the GPU under different outlets.
var breadthActions = `run agent; reconcile; close; configure 0; configure 1; create 0; create 1; allocate 0; insert 0; write 0; land 0; land 1;
	start 0; appear 0; end 0; force 0; stop 0; process 0; process 1; query 1; query 2; deliver 2; pass; rounds 1;
	restart agent; restart agent, no state; restart kubelet`

// TestModelBreadth runs all sequences of some actions up to a depth, from a converged node with a pod in admission.
func TestModelBreadth(t *testing.T) {
	actions, err := parseScript(breadthActions)
	if err != nil {
		t.Fatal(err)
	}
	prefix, err := parseScript("rounds 3; create 0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	for _, a := range prefix {
		w.do(a)
	}
	type node struct {
		*world
		path []action
	}
	seed := maphash.MakeSeed()
	seen := map[uint64]bool{}
	level := []node{{w, prefix}}
	for range breadthDepth {
		var below []node
		for _, n := range level {
			for _, a := range actions {
				next := n.clone()
				if !next.do(a) {
					continue
				}
				path := append(n.path[:len(n.path):len(n.path)], a)
				if next.violation != "" {
					t.Fatalf("%s: %s\n%s", next.violation, script(path), trace(path))
				}
				if key := next.hash(seed); !seen[key] {
					seen[key] = true
					below = append(below, node{next, path})
				}
			}
		}
		level = below
	}
	t.Logf("%d states", len(seen))
}

// hash returns equal values for equal worlds.
func (w *world) hash(seed maphash.Seed) uint64 {
	h := maphash.Comparable(seed, w.state)
	mix := func(x uint64) { h = h*0x9E3779B97F4A7C15 + x }
	mix(maphash.Comparable(seed, w.ledger.bootstrap))
	mix(maphash.Comparable(seed, w.ledger.checkpoint))
	mix(maphash.Comparable(seed, w.ledger.start))
	for _, e := range w.ledger.entries {
		for _, p := range e.pods {
			mix(maphash.String(seed, p))
		}
		mix(maphash.Comparable(seed, struct {
			entryFields
			accepts, dirty                                          bool
			seq, endedClaims                                        uint64
			last, withdrawn, processed, unrecorded, released, ended time.Time
		}{
			entryFields{e.Key, e.Part, e.State, e.Features, e.Capacity, e.Drain}, e.accepts, e.dirty, e.seq, e.endedClaims, e.last, e.withdrawn,
			e.processed, e.unrecorded, e.released, e.ended,
		}))
	}
	for _, k := range keys {
		if d := w.gate.entries[k.Key]; d != nil {
			mix(maphash.Comparable(seed, [...]any{d.grant.Seq, d.grant.Last, d.grant.Closed, len(d.grant.Pods), d.open}))
		}
	}
	for _, c := range w.gate.Claims() {
		mix(maphash.String(seed, c.UID))
	}
	for _, s := range w.saved.Entries {
		mix(maphash.Comparable(seed, entryFields{s.Key, s.Part, s.State, s.Features, s.Capacity, s.Drain}))
		for _, p := range s.Pods {
			mix(maphash.String(seed, p))
		}
	}
	for _, c := range w.todo.Close {
		mix(maphash.Comparable(seed, c))
	}
	mix(maphash.String(seed, w.todo.Resend))
	mix(maphash.Comparable(seed, w.saved.Complete))
	return h
}

// entryFields are the comparable fields of a SavedEntry.
type entryFields struct {
	Key      Key
	Part     Part
	State    State
	Features Features
	Capacity Amount
	Drain    Drain
}

// FuzzModel decodes actions from fuzzed bytes.
func FuzzModel(f *testing.F) {
	for _, text := range scripts {
		actions, err := parseScript(text)
		if err != nil {
			f.Fatal(err)
		}
		var data []byte
		for _, a := range actions {
			data = append(data, a.kind, a.arg)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var actions []action
		for ; len(data) >= 2 && len(actions) < 4*modelSteps; data = data[2:] {
			kind := data[0] % uint8(len(kinds))
			actions = append(actions, action{kind, data[1] % kinds[kind].args})
		}
		if violation := run(actions, convergeWithoutPods); violation != "" {
			t.Fatalf("%s\n%s", violation, script(actions))
		}
	})
}
