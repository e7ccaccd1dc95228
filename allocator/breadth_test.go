package allocator

import (
	"hash/maphash"
	"testing"
	"time"
)

// searches are the searches of TestModelBreadth: the first actions, and those of which all sequences up to a depth
// follow. kinds describes them and their arguments.
var searches = map[string]struct {
	first, then string
	depth       int
}{
	// The two configs advertise the GPU under different outlets.
	"a pod in admission": {"rounds 3; create 0", `run agent; reconcile; close; configure 0; configure 1; create 0; create 1; allocate 0;
		insert 0; write 0; land 0; land 1; start 0; appear 0; end 0; force 0; stop 0; process 0; process 1; query 1; query 2; deliver 2;
		pass; rounds 1; restart agent; restart agent, no state; restart kubelet`, 5},
	"a pod joins a prepared claim": {"configure 5; rounds 3; schedule; prepare 0; start 2; join 2", `run agent; schedule; join 1;
		prepare 0; prepare 1; start 1; appear 1; appear 2; end 1; end 2; force 1; force 2; stop 1; stop 2; unprepare 1; unprepare 2;
		query 3; deliver 3; pass; restart agent; restart agent, no state; restart agent, no records; restart kubelet`, 5},
}

// TestModelBreadth runs the searches.
func TestModelBreadth(t *testing.T) {
	for name, s := range searches {
		t.Run(name, func(t *testing.T) { searchBreadth(t, s.first, s.then, s.depth) })
	}
}

func searchBreadth(t *testing.T, first, then string, depth int) {
	actions, err := parseScript(then)
	if err != nil {
		t.Fatal(err)
	}
	prefix, err := parseScript(first)
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
	for range depth {
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
	mixEnded := func(ended []EndedClaim) {
		for _, c := range ended {
			mix(maphash.Comparable(seed, [...]any{c.Number, c.At, c.Amount, len(c.Pods), c.Joins}))
		}
	}
	for _, e := range w.ledger.entries {
		mixEnded(e.ended)
		for _, p := range e.pods {
			mix(maphash.String(seed, p))
		}
		mix(maphash.Comparable(seed, struct {
			entryFields
			accepts, dirty                                   bool
			seq, lastEnded                                   uint64
			last, withdrawn, processed, unrecorded, released time.Time
			joins                                            Joins
		}{
			entryFields{e.Key, e.Part, e.State, e.Features, e.Capacity, e.Drain}, e.accepts, e.dirty, e.seq, e.lastEnded, e.last, e.withdrawn,
			e.processed, e.unrecorded, e.released, e.joins,
		}))
	}
	for _, k := range keys {
		if d := w.gate.entries[k.Key]; d != nil {
			mixEnded(d.grant.Ended)
			mix(maphash.Comparable(seed, [...]any{d.grant.Seq, d.grant.Last, d.grant.Closed, len(d.grant.Pods), d.grant.LastEnded, d.open}))
		}
	}
	mix(maphash.Comparable(seed, w.gate.reads))
	for _, c := range w.gate.Claims() {
		mix(maphash.Comparable(seed, [...]any{c.UID, len(c.Pods)}))
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
