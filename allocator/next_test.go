package allocator

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// at returns a time after the start of the agent.
func at(d time.Duration) time.Time { return epoch.Add(d) }

// fixture is the ledger of an agent that started with state, and its next observation.
type fixture struct {
	ledger Ledger
	o      Observation
	todo   Todo
}

func whole(id string) Part { return Part{GPU: id, Extent: ExtentWhole} }

func wantsFor(outlet string, ids ...string) (wants []Want) {
	for _, id := range ids {
		wants = append(wants, Want{Key: Key{outlet, id}, Part: whole(id), Ready: true})
	}
	return wants
}

// newFixture returns a fixture in which these GPUs are present and wanted.
func newFixture(ids ...string) *fixture {
	n := &fixture{ledger: Start(&Saved{Complete: true}, false, at(0))}
	n.o = Observation{Wanted: wantsFor("gpu", ids...), Lists: map[string]List{}, Grants: map[Key]Grant{}, Runtime: &Runtime{Requested: at(0), Received: at(0)}}
	for _, id := range ids {
		n.o.Present = append(n.o.Present, Present{Device: whole(id)})
	}
	return n
}

// next advances the ledger, and formats its entries as "gpu 0 available".
func (n *fixture) next(d time.Duration) string {
	n.ledger, n.todo = Next(n.ledger, n.o, at(d))
	var lines []string
	for e := range n.ledger.Entries() {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%v %s %s%s", e.Key, e.State, e.Fault.Message, e.Drain.Reason)))
	}
	return strings.Join(lines, ", ")
}

func (n *fixture) expect(t *testing.T, d time.Duration, want string) {
	t.Helper()
	if got := n.next(d); got != want {
		t.Errorf("after %v: %s, want %s", d, got, want)
	}
}

func TestFaults(t *testing.T) {
	n := newFixture("0")
	n.o.Wanted[0].Ready = false
	n.expect(t, 0, "gpu 0 waiting")
	n.o.Wanted[0].Fault = fault("lost") // a device with a fault may have no spec
	n.expect(t, 0, "gpu 0 unavailable lost")
	n.o.Wanted[0].Fault = gpu.Fault{}
	n.expect(t, 0, "gpu 0 unavailable lost")
	n.o.Wanted[0].Ready = true
	n.expect(t, 0, "gpu 0 available")
	n.o.Wanted[0].Fault = fault("hot")
	n.expect(t, 0, "gpu 0 unavailable hot")
	n.o.Wanted[0].Fault = fault("hotter")
	n.expect(t, 0, "gpu 0 unavailable hotter")
	n.o.Wanted = nil
	n.expect(t, 0, "gpu 0 draining config")
}

func TestDrainReasons(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		change     func(*fixture)
		granted    bool
	}{
		{"the config", "gpu 0 draining config", func(*fixture) {}, true},
		{"the config, with a fault", "gpu 0 draining config", func(n *fixture) { n.o.Present[0].Fault = fault("lost") }, false},
		{"partitioned", "gpu 0 draining repartitioned", func(n *fixture) { n.o.Present[0].Device = mig("0", 1, 0, 0, 4) }, false},
		{"gone", "gpu 0 draining gone", func(n *fixture) { n.o.Present = nil }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newFixture("0")
			n.expect(t, 0, "gpu 0 available")
			g := NewGate(time.Now)
			g.Advertise(n.ledger)
			n.o.Wanted = nil
			tc.change(n)
			n.expect(t, 0, tc.want)
			g.Withdraw(n.ledger)
			if err := g.Allocate("gpu", []string{"0"}, true); (err == nil) != tc.granted {
				t.Errorf("Allocate: %v", err)
			}
			n.o.Wanted = wantsFor("gpu", "0")
			n.expect(t, time.Hour, "gpu 0 available")
		})
	}
}

// An entry whose pods have ended is proved free while it is still advertised. When it is withdrawn later, it is
// released as if it had never been granted.
func TestIdleEntryBecomesClean(t *testing.T) {
	n := newFixture("0")
	n.expect(t, 0, "gpu 0 available")
	key, held := Key{"gpu", "0"}, []Holding{{Key: Key{"gpu", "0"}, Part: whole("0"), Pod: "pod"}}
	n.o.Lists["gpu"] = List{Stream: at(0), Sent: at(0)}
	n.o.Grants[key] = Grant{Seq: 1, Last: at(0)}
	n.o.Checkpoint = &Checkpoint{Requested: at(1), Received: at(1), Version: "1", Held: held}
	n.o.Pods = &PodResources{Requested: at(1), Received: at(1), Held: map[Key]bool{key: true}}
	if n.next(1); n.todo.Pods || n.todo.Resend != "" || n.todo.Again != at(2*settle) {
		t.Errorf("while the pod starts: %+v", n.todo)
	}
	d := time.Minute
	n.o.Checkpoint = &Checkpoint{Requested: at(d), Received: at(d), Version: "1", Held: held}
	if n.next(d + 1); !n.todo.Pods || n.todo.Resend != "" {
		t.Errorf("while the pod may run: %+v", n.todo)
	}
	n.o.Pods = &PodResources{Requested: at(d + 1), Received: at(d + 1)}
	if n.next(d + 1); n.todo.Resend != "gpu" {
		t.Errorf("after the pod has ended: %+v", n.todo)
	}
	n.o.Lists["gpu"] = List{Stream: at(0), Sent: at(d + 2)}
	if n.next(d + 2); !n.todo.Checkpoint || n.todo.Resend != "" {
		t.Errorf("after the list was sent: %+v", n.todo)
	}
	n.o.Checkpoint = &Checkpoint{Requested: at(d + 3), Received: at(d + 3), Version: "2"}
	if n.next(d + 3); n.todo.Again != at(d+3+settle) {
		t.Errorf("after the kubelet has removed its record: %+v", n.todo)
	}
	if n.next(d + 3 + settle); !n.todo.Runtime {
		t.Errorf("a settle later: %+v", n.todo)
	}
	n.o.Runtime = &Runtime{Requested: at(d + 3 + settle), Received: at(d + 3 + settle), Absent: true}
	if n.next(d + 4 + settle); n.todo.Again != at(d+3+settle+idleInterval) {
		t.Errorf("without a runtime: %+v", n.todo)
	}
	n.o.Runtime = &Runtime{Requested: at(d + 3 + settle), Received: at(d + 3 + settle)}
	n.expect(t, d+4+settle, "gpu 0 available")
	if !n.todo.Again.IsZero() {
		t.Errorf("when clean: %+v", n.todo)
	}
	n.o.Wanted = nil
	n.next(2 * d)
	n.o.Lists["gpu"] = List{Stream: at(0), Sent: at(2 * d)}
	n.o.Allocatable = &Allocatable{Requested: at(2 * d), Received: at(2 * d)}
	if n.next(2 * d); !reflect.DeepEqual(n.todo.Close, []Closing{{Key: key, Seq: 1}}) {
		t.Errorf("got %+v", n.todo)
	}
}

// An entry that was never granted is free when the kubelet no longer selects it, or after three settles.
func TestUngrantedEntriesAreReleasedAtOnce(t *testing.T) {
	n := newFixture("0")
	n.expect(t, 0, "gpu 0 available")
	n.o.Wanted = wantsFor("renamed", "0")
	n.o.Lists["gpu"] = List{Stream: at(0), Sent: at(0)}
	n.expect(t, time.Second, "gpu 0 draining config, renamed 0 waiting")
	if n.todo.Allocatable || len(n.todo.Close) > 0 {
		t.Errorf("before the list was sent: %+v", n.todo)
	}
	n.o.Lists["gpu"] = List{Stream: at(0), Sent: at(2 * time.Second)}
	n.o.Allocatable = &Allocatable{Requested: at(settle - 1), Received: at(settle)} // too early after the start of the stream
	if n.next(settle); !n.todo.Allocatable || len(n.todo.Close) > 0 {
		t.Errorf("too early: %+v", n.todo)
	}
	n.o.Allocatable = &Allocatable{Requested: at(settle), Received: at(settle), IDs: map[Key]bool{{"gpu", "0"}: true}}
	if n.next(settle); len(n.todo.Close) > 0 {
		t.Errorf("while still healthy: %+v", n.todo)
	}
	if n.todo.Again != at(settle+drainInterval) {
		t.Errorf("Again = %v", n.todo.Again)
	}
	n.o.Allocatable = &Allocatable{Requested: at(settle), Received: at(settle)}
	closing := []Closing{{Key: Key{"gpu", "0"}}}
	if n.next(settle); !reflect.DeepEqual(n.todo.Close, closing) {
		t.Errorf("got %+v", n.todo)
	}
	n.o.Allocatable = nil
	n.o.Grants[closing[0].Key] = Grant{Closed: true}
	n.expect(t, settle, "gpu 0 released, renamed 0 available")
	n.expect(t, 2*settle+listLag-1, "gpu 0 released, renamed 0 available")
	n.expect(t, 2*settle+listLag, "renamed 0 available")

	n = newFixture("0")
	n.expect(t, 0, "gpu 0 available")
	n.o.Wanted = nil
	if n.next(0); n.todo.Again != at(3*settle) {
		t.Errorf("got %+v", n.todo)
	}
	if n.next(3 * settle); !reflect.DeepEqual(n.todo.Close, closing) {
		t.Errorf("got %+v", n.todo)
	}
}

// After a start without state, IDs that the earlier agent advertised are available as soon as the kubelet's records are
// complete, the others only after proof.
func TestStartWithoutState(t *testing.T) {
	n := newFixture("0", "1")
	n.ledger = Start(nil, false, at(0))
	n.o.Checkpoint = &Checkpoint{Requested: at(1), Received: at(1), Version: "1", Registered: map[Key]bool{{"gpu", "0"}: true, {"gpu", "old"}: true}}
	n.expect(t, 1, "gpu 0 draining unknown, gpu 1 waiting, gpu old draining unknown")
	if n.ledger.MayList() {
		t.Error("MayList too early")
	}
	if n.next(settle); !n.todo.Checkpoint {
		t.Errorf("got %+v", n.todo)
	}
	n.o.Checkpoint.Requested = at(settle)
	n.o.Checkpoint.Held = []Holding{{Key: Key{"gpu", "old"}, Part: whole("old"), Pod: "p"}}
	n.o.Checkpoint.Registered = map[Key]bool{{"gpu", "0"}: true}
	n.ledger = Start(nil, false, at(0))
	n.expect(t, settle, "gpu 0 available, gpu 1 waiting, gpu old draining unknown")
	if !n.ledger.MayList() || n.ledger.Complete() || n.ledger.Save().Complete {
		t.Errorf("MayList %v, Complete %v", n.ledger.MayList(), n.ledger.Complete())
	}
	n.o.Checkpoint = &Checkpoint{Requested: at(2 * settle), Received: at(2 * settle), Version: "1", Held: n.o.Checkpoint.Held}
	n.next(2 * settle)
	n.o.Checkpoint = &Checkpoint{Requested: at(3 * settle), Received: at(3 * settle), Version: "2", Held: n.o.Checkpoint.Held}
	n.next(3 * settle)
	n.o.Runtime = &Runtime{Requested: at(4 * settle), Received: at(4 * settle)}
	n.expect(t, 4*settle, "gpu 0 available, gpu 1 available, gpu old draining unknown")
	if !n.ledger.Complete() {
		t.Error("not complete")
	}
}

func TestSave(t *testing.T) {
	n := newFixture("0", "1", "2", "3")
	n.next(0)
	n.o.Wanted = append(wantsFor("gpu", "0", "1"), wantsFor("renamed", "2")...)
	n.o.Wanted[1].Fault = fault("lost")
	n.o.Grants[Key{"gpu", "3"}] = Grant{Closed: true}
	n.next(0)
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable lost, gpu 2 draining config, gpu 3 released, renamed 2 waiting")
	text, err := json.Marshal(n.ledger.Save())
	if err != nil {
		t.Fatal(err)
	}
	var saved Saved
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(saved, n.ledger.Save()) {
		t.Errorf("got %s, want %+v", text, n.ledger.Save())
	}
	saved.Entries = append(saved.Entries, SavedEntry{Key: Key{"gpu", "9"}, State: "of a later version"})
	n.ledger, n.o.Grants = Start(&saved, false, at(0)), nil
	n.expect(t, 0, "gpu 0 available, gpu 1 unavailable lost, gpu 2 draining config, gpu 3 released, gpu 9 draining unknown, renamed 2 waiting")
}

// A damaged entry is found by the evidence that an agent without state requires. Other entries are kept.
func TestDamagedEntries(t *testing.T) {
	for name, damaged := range map[string]SavedEntry{
		"no outlet":         {Key: Key{"", "1"}, Part: whole("1")},
		"no ID":             {Key: Key{"gpu", ""}, Part: whole("1")},
		"no GPU":            {Key: Key{"gpu", "1"}, Part: Part{Extent: ExtentWhole}},
		"unknown extent":    {Key: Key{"gpu", "1"}, Part: Part{GPU: "1", Extent: "half"}},
		"negative slices":   {Key: Key{"gpu", "1"}, Part: mig("1", 1, 0, 0, -1)},
		"share of no size":  {Key: Key{"gpu", "1"}, Part: shareOf(whole("1"), MemoryLimited, 0)},
		"negative share":    {Key: Key{"gpu", "1"}, Part: shareOf(whole("1"), MemoryLimited, -1)},
		"share of no class": {Key: Key{"gpu", "1"}, Part: shareOf(whole("1"), "", 2)},
		"share of a unit":   {Key: Key{"slice", "1"}, Part: Part{GPU: "1", Extent: ExtentWhole, Share: Share{MemoryLimited, 2, ShareMemory}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFixture("0", "1")
			n.next(0)
			saved := n.ledger.Save()
			damaged.State = StateAvailable
			saved.Entries = []SavedEntry{saved.Entries[0], damaged}
			n.ledger = Start(&saved, false, at(0))
			n.expect(t, 0, "gpu 0 available, gpu 1 waiting")
			if n.ledger.Complete() {
				t.Error("the ledger is complete")
			}
			held := Key{"gpu", "1"}
			n.o.Checkpoint = &Checkpoint{Requested: at(11 * time.Second), Received: at(11 * time.Second), Version: "a",
				Held: []Holding{{Key: held, Part: whole("1"), Pod: "pod"}}, Registered: map[Key]bool{held: true}}
			n.expect(t, 11*time.Second, "gpu 0 available, gpu 1 available")
		})
	}
}

func BenchmarkNext(b *testing.B) {
	n := newFixture()
	for g := range 8 {
		for i := range 2_500 {
			p := shareOf(whole(fmt.Sprintf("GPU-%d", g)), TimeSliced, 2_500)
			n.o.Wanted = append(n.o.Wanted, Want{Key: Key{"gpu", fmt.Sprintf("%s::%d", p.GPU, i)}, Part: p, Ready: true})
		}
	}
	n.next(0)
	for b.Loop() {
		Next(n.ledger, n.o, at(time.Second))
	}
}

// An agent finds the pods of an earlier one that still have a sandbox, although the runtime reports no container with
// the device, nor the kubelet a claim.
func TestSavedPods(t *testing.T) {
	n := newFixture("0")
	n.o.Wanted = wantsFor(SliceOutlet, "0")
	n.expect(t, 0, "slice 0 available")
	n.o.Claims = []Claim{{UID: "claim", Pods: []string{"pod"}, Devices: []string{"0"}, Parts: []Part{whole("0")}}}
	n.next(0)
	saved := n.ledger.Save()
	if got := saved.Entries[0].Pods; !slices.Equal(got, []string{"pod"}) {
		t.Fatalf("saved pods %v", got)
	}
	n.ledger, n.o.Claims = Start(&saved, false, at(0)), nil
	for _, tc := range []struct {
		sandboxes map[string]time.Time
		want      []string
	}{{map[string]time.Time{"pod": at(0)}, []string{"pod"}}, {nil, nil}} {
		n.next(time.Minute)
		n.o.Runtime = &Runtime{Requested: at(2 * time.Minute), Received: at(2 * time.Minute), Sandboxes: tc.sandboxes}
		n.next(3 * time.Minute)
		if got := n.ledger.Save().Entries[0].Pods; !slices.Equal(got, tc.want) {
			t.Errorf("sandboxes %v: pods %v, want %v", tc.sandboxes, got, tc.want)
		}
	}
}

// The pods of a claim in continuous use do not add up.
func TestPodsOfClaimAreReplaced(t *testing.T) {
	n := newFixture("0")
	n.o.Wanted = wantsFor(SliceOutlet, "0")
	for i := range 10 {
		pods := []string{fmt.Sprint(i), fmt.Sprint(i + 1)}
		n.o.Claims = []Claim{{UID: "claim", Pods: pods, Devices: []string{"0"}, Parts: []Part{whole("0")}}}
		n.next(0)
		if got := n.ledger.Save().Entries[0].Pods; !slices.Equal(got, distinct(pods)) {
			t.Fatalf("saved pods %v, want %v", got, pods)
		}
	}
}

// A claim that was restored as a holder, because the API server did not respond, turns out to monitor the GPU. Its pod
// continues to run, and does not keep the GPU from other claims.
func TestRestoredClaimMonitors(t *testing.T) {
	n := newFixture("0")
	n.o.Wanted = wantsFor(SliceOutlet, "0")
	monitors := Claim{UID: "claim", Pods: []string{"monitor"}, Devices: []string{"0"}, Parts: []Part{whole("0")}}
	n.o.Claims = []Claim{monitors}
	n.next(0)
	monitors.Devices, monitors.Parts, monitors.Admin = nil, nil, []string{"0"}
	n.o.Claims = []Claim{monitors}
	n.next(time.Minute)
	n.o.Runtime = &Runtime{Requested: at(2 * time.Minute), Received: at(2 * time.Minute), Sandboxes: map[string]time.Time{"monitor": at(0)}}
	n.next(3 * time.Minute)
	if e, _ := n.ledger.Entry(Key{SliceOutlet, "0"}); e.dirty {
		t.Error("the pod of the monitoring claim holds the GPU")
	}
}

// A device that is withdrawn from the slices again is released only after the API server was asked again, even if it had
// a fault in between and was never available.
func TestWithdrawnAgainAfterFault(t *testing.T) {
	n := newFixture("0")
	wants, moved := wantsFor(SliceOutlet, "0"), wantsFor("gpu", "0")
	n.o.Wanted, n.o.Pool = wants, Pool{IDs: map[string]bool{"0": true}}
	n.expect(t, 0, "slice 0 available")
	withdrawn := func(d time.Duration) {
		n.o.Wanted = moved
		n.next(d)
		n.o.Pool = Pool{Acknowledged: at(d)}
		n.next(d)
		if n.next(d + scheduleLag); !n.todo.Allocations || len(n.todo.Close) > 0 {
			t.Errorf("after %s: %+v", d, n.todo)
		}
	}
	withdrawn(0)
	n.o.Allocations = &Allocations{Requested: at(time.Minute), Received: at(time.Minute)}
	n.o.Wanted = wantsFor(SliceOutlet, "0")
	n.o.Wanted[0].Fault = fault("lost")
	n.o.Pool = Pool{Acknowledged: at(time.Minute), IDs: map[string]bool{"0": true}}
	n.next(time.Minute)
	withdrawn(2 * time.Minute)
}
