package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const testDriver = "gpu.nvidia.com"

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testCredentials returns a directory with the credentials of a service account.
func testCredentials(t *testing.T) string { return newServer(t).client.credentials }

// poolTest is a pool that runs in a synctest bubble.
type poolTest struct {
	*testing.T
	api  *fakeAPI
	pool *Pool
	stop func() // ends Run
}

// testPool runs a test with an API server in a bubble. The pool runs once test calls start.
func testPool(t *testing.T, test func(t *poolTest)) {
	t.Helper()
	credentials := testCredentials(t)
	synctest.Test(t, func(t *testing.T) {
		api, stopAPI := newFakeAPI(t, credentials)
		defer stopAPI()
		p := &poolTest{T: t, api: api}
		defer func() {
			if p.stop != nil {
				p.stop()
			}
		}()
		test(p)
	})
}

// start runs a new pool, as after a restart of the agent.
func (t *poolTest) start() {
	if t.stop != nil {
		t.stop()
	}
	t.pool = NewPool(t.api.client, testDriver, "node", testLog(t.T))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		t.pool.Run(ctx)
		close(ended)
	}()
	t.stop = func() {
		cancel()
		<-ended
		t.stop = nil
	}
}

// wait lets the pool run for a time of the bubble's clock.
func (t *poolTest) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want checks that a scheduler uses exactly these devices and that the status agrees.
func (t *poolTest) want(devices ...string) {
	t.Helper()
	if got, ok := t.api.published(); !ok || !slices.Equal(got, devices) {
		t.Errorf("published %v (complete: %t), want %v", got, ok, devices)
	}
	s := t.pool.Status()
	if !slices.Equal(s.Devices, devices) || s.Revision != t.pool.latest().revision || s.Error != "" || s.Since.IsZero() {
		t.Errorf("status %+v, want %v at revision %d", s, devices, t.pool.latest().revision)
	}
}

// quiet checks that nothing is written for ten minutes.
func (t *poolTest) quiet() {
	t.Helper()
	t.api.written()
	t.wait(10 * time.Minute)
	if writes := t.api.written(); len(writes) > 0 {
		t.Errorf("%d writes without a change: %.200v", len(writes), writes)
	}
}

func devices(names ...string) (all []Device) {
	for _, name := range names {
		all = append(all, Device{
			Name:       name,
			Attributes: map[string]Attribute{"uuid": StringAttribute("GPU-" + name), "index": IntAttribute(1 << 60)},
			Capacity:   map[string]Capacity{"memory": Bytes(80 << 30)},
		})
	}
	return all
}

func manyDevices(n int) []Device {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("gpu-", n-i))
	}
	return devices(names...)
}

func names(devices []Device) (names []string) {
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

func testSliceName(i int) string { return sliceName(testDriver, "node", i) }

func TestPoolPublishes(t *testing.T) {
	for count, want := range map[int]int{0: 1, 1: 1, 64: 1, 65: 2, 130: 3} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			testPool(t, func(t *poolTest) {
				t.start()
				t.wait(time.Minute)
				if writes := t.api.written(); len(writes) > 0 || t.pool.Status().Since.IsZero() {
					t.Errorf("before the first Want: %v, status %+v", writes, t.pool.Status())
				}
				all := manyDevices(count)
				t.pool.Want(all)
				synctest.Wait()
				t.want(names(all)...)
				if len(t.api.slices) != want || t.pool.Writes() != uint64(want) {
					t.Errorf("%d slices, %d writes, want %d", len(t.api.slices), t.pool.Writes(), want)
				}
				owner := fmt.Sprint(meta(t.api.slices[testSliceName(0)])["ownerReferences"])
				if owner != "[map[apiVersion:v1 controller:true kind:Node name:node uid:node-uid-1]]" {
					t.Errorf("owner %s", owner)
				}
				t.quiet()
			})
		})
	}
}

// An agent that restarts writes nothing if nothing has changed.
func TestPoolRestart(t *testing.T) {
	testPool(t, func(t *poolTest) {
		for i := range 3 {
			t.start()
			t.pool.Want(manyDevices(70))
			synctest.Wait()
			if writes := len(t.api.written()); writes != map[bool]int{true: 2, false: 0}[i == 0] {
				t.Errorf("%d writes at start %d", writes, i)
			}
			t.want(names(manyDevices(70))...)
		}
	})
}

// The slices are restored within a second, whatever another client does to them.
func TestPoolRestores(t *testing.T) {
	for name, change := range map[string]func(api *fakeAPI){
		"all deleted": (*fakeAPI).deleteAll,
		"deleted": func(api *fakeAPI) {
			api.mu.Lock()
			defer api.mu.Unlock()
			api.remove(testSliceName(1))
		},
		"devices removed": func(api *fakeAPI) { api.edit(testSliceName(0), func(s object) { delete(spec(s), "devices") }) },
		"device changed": func(api *fakeAPI) {
			api.edit(testSliceName(0), func(s object) { spec(s)["devices"].([]any)[3].(object)["attributes"] = object{} })
		},
		"unknown field": func(api *fakeAPI) {
			api.edit(testSliceName(0), func(s object) { spec(s)["skipNodeOperations"] = []any{"*"} })
		},
		"unknown field of a device": func(api *fakeAPI) {
			api.edit(testSliceName(1), func(s object) { spec(s)["devices"].([]any)[0].(object)["bindsToNode"] = true })
		},
		"large number": func(api *fakeAPI) {
			api.edit(testSliceName(0), func(s object) {
				spec(s)["devices"].([]any)[0].(object)["attributes"].(object)["index"] = object{"int": 1<<60 + 1}
			})
		},
		"generation": func(api *fakeAPI) {
			api.edit(testSliceName(0), func(s object) { pool := spec(s)["pool"].(object); pool["generation"] = number(pool["generation"]) + 7 })
		},
		"lower generation": func(api *fakeAPI) {
			api.edit(testSliceName(0), func(s object) { spec(s)["pool"].(object)["generation"] = 0 })
		},
		"count": func(api *fakeAPI) {
			api.edit(testSliceName(0), func(s object) { spec(s)["pool"].(object)["resourceSliceCount"] = 3 })
		},
		"owner": func(api *fakeAPI) { api.edit(testSliceName(0), func(s object) { delete(meta(s), "ownerReferences") }) },
		"additional slice": func(api *fakeAPI) {
			api.create("00002-copy-gpucdi", testDriver, "node", 1, "gpu-x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			testPool(t, func(t *poolTest) {
				t.start()
				t.pool.Want(manyDevices(70))
				t.wait(10 * time.Second)
				for range 2 {
					before := t.api.snapshot()
					change(t.api)
					if before == t.api.snapshot() {
						t.Fatal("nothing has changed")
					}
					t.wait(time.Second)
					t.want(names(manyDevices(70))...)
					if owner := fmt.Sprint(meta(t.api.slices[testSliceName(0)])["ownerReferences"]); !strings.Contains(owner, "node-uid-1") {
						t.Errorf("owner %s", owner)
					}
				}
				t.quiet()
			})
		})
	}
}

// Metadata that other clients add is kept.
func TestPoolKeepsMetadata(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		t.pool.Want(devices("a"))
		synctest.Wait()
		t.api.edit(testSliceName(0), func(s object) {
			meta(s)["labels"] = object{"label": "value"}
			meta(s)["annotations"] = object{"annotation": "value"}
			meta(s)["finalizers"] = []any{"example.com/finalizer"}
		})
		t.pool.Want(devices("b"))
		t.wait(time.Second)
		t.want("b")
		got := fmt.Sprint(meta(t.api.slices[testSliceName(0)]))
		for _, kept := range []string{"labels:map[label:value]", "annotations:map[annotation:value]", "finalizers:[example.com/finalizer]"} {
			if !strings.Contains(got, kept) {
				t.Errorf("metadata %s lacks %s", got, kept)
			}
		}
	})
}

// A client that repeatedly deletes the slices does not cause an unlimited number of requests.
func TestPoolLimitsRestores(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		t.pool.Want(devices("a"))
		synctest.Wait()
		for range 10_000 {
			t.api.deleteAll()
			t.wait(10 * time.Millisecond)
		}
		if writes := len(t.api.written()); writes < 50 || writes > 150 {
			t.Errorf("%d writes in 100 seconds", writes)
		}
		// A change of the devices waits only for a restore in progress.
		t.api.deleteAll()
		t.pool.Want(devices("b"))
		t.wait(2 * time.Second)
		t.want("b")
	})
}

// The generation increases if a slice is created, or if more than one is updated.
func TestPoolGeneration(t *testing.T) {
	all := manyDevices(130)
	changed := func(indices ...int) []Device {
		changed := slices.Clone(all)
		for _, i := range indices {
			changed[i].Attributes = map[string]Attribute{"changed": BoolAttribute(true)}
		}
		return changed
	}
	for name, tc := range map[string]struct {
		devices    []Device
		generation int64
		writes     []string
	}{
		"unchanged":   {all, 1, nil},
		"one slice":   {changed(0, 5), 1, []string{"PUT 0"}},
		"last slice":  {changed(129), 1, []string{"PUT 2"}},
		"two slices":  {changed(5, 100), 2, []string{"PUT 0", "PUT 1", "PUT 2"}},
		"one fewer":   {all[:65], 2, []string{"DELETE 2", "PUT 0", "PUT 1"}},
		"one more":    {manyDevices(193), 2, []string{"PUT 0", "PUT 1", "PUT 2", "POST 3"}},
		"no devices":  {nil, 1, []string{"DELETE 2", "DELETE 1", "PUT 0"}},
		"other order": {append(slices.Clone(all[1:64]), append([]Device{all[0]}, all[64:]...)...), 1, []string{"PUT 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			testPool(t, func(t *poolTest) {
				t.start()
				t.pool.Want(all)
				synctest.Wait()
				t.api.written()
				t.pool.Want(tc.devices)
				synctest.Wait()
				t.want(names(tc.devices)...)
				var writes []string
				for _, w := range t.api.written() {
					verb, name, _ := strings.Cut(w, " ")
					writes = append(writes, verb+" "+strings.TrimLeft(name[:4], "0")+name[4:5])
				}
				slices.Sort(writes)
				slices.Sort(tc.writes)
				if !slices.Equal(writes, tc.writes) {
					t.Errorf("writes %v, want %v", writes, tc.writes)
				}
				if got := number(clone(spec(t.api.slices[testSliceName(0)]))["pool"].(object)["generation"]); got != tc.generation {
					t.Errorf("generation %v, want %v", got, tc.generation)
				}
			})
		})
	}
}

// A taint keeps the time at which it was added, whatever else changes.
func TestPoolKeepsTaintTimes(t *testing.T) {
	tainted := func(taints ...string) []Device {
		all := devices("a", "b")
		for _, taint := range taints {
			all[0].Taints = append(all[0].Taints, Taint{Key: "gpu.nvidia.com/xid", Value: taint, Effect: NoSchedule})
		}
		return all
	}
	testPool(t, func(t *poolTest) {
		times := func() (times []string) {
			for taint := range objects(t.api.device("a")["taints"]) {
				times = append(times, text(taint, "timeAdded"))
			}
			return times
		}
		t.start()
		t.pool.Want(tainted("79"))
		synctest.Wait()
		added := times()
		if len(added) != 1 || added[0] == "" {
			t.Fatalf("times %v", added)
		}
		t.quiet()
		for name, change := range map[string]func(){
			"second taint": func() { t.pool.Want(tainted("79", "48")) },
			"deleted":      t.api.deleteAll,
			"restart":      func() { t.start(); t.pool.Want(tainted("79", "48")) },
			"device added": func() { t.pool.Want(append(tainted("79"), devices("c")...)) },
			"removed by admin": func() {
				t.api.edit(testSliceName(0), func(s object) { delete(spec(s)["devices"].([]any)[0].(object), "taints") })
			},
		} {
			change()
			t.wait(time.Minute)
			if got := times(); len(got) == 0 || got[0] != added[0] {
				t.Errorf("%s: times %v, want %v first", name, got, added)
			}
		}
		t.pool.Want(tainted())
		t.wait(time.Minute)
		t.pool.Want(tainted("79"))
		synctest.Wait()
		if got := times(); len(got) != 1 || got[0] == added[0] {
			t.Errorf("times after the fault returned: %v", got)
		}
	})
}

// Fields that the API server drops are reported, and do not cause further writes. They are sent again after an outage.
func TestPoolDroppedFields(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.api.gate["taints"] = true
		t.start()
		all := devices("a", "b")
		all[1].Taints = []Taint{{Key: "key", Effect: NoSchedule}}
		t.pool.Want(all)
		synctest.Wait()
		t.want("a", "b")
		if got := t.pool.Status().Dropped; !slices.Equal(got, []string{"devices[].taints"}) {
			t.Errorf("dropped %v", got)
		}
		t.quiet()
		t.api.deleteAll()
		t.wait(time.Second)
		t.want("a", "b")
		t.quiet()

		t.api.setDown(true)
		t.wait(time.Minute)
		delete(t.api.gate, "taints")
		t.api.setDown(false)
		t.wait(time.Second)
		t.want("a", "b")
		if got := t.pool.Status().Dropped; got != nil || t.api.device("b")["taints"] == nil {
			t.Errorf("dropped %v, device %v", got, t.api.device("b"))
		}
		t.quiet()
	})
}

// The dropped fields stay known while they are not sent: a publisher that omits devices whose taints are dropped would
// otherwise add them again.
func TestPoolDroppedTaintsStayKnown(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.api.gate["taints"] = true
		t.start()
		all := devices("a", "b")
		all[1].Taints = []Taint{{Key: "key", Effect: NoSchedule}}
		want := func(drops bool, all []Device, names ...string) {
			t.Helper()
			t.pool.Want(all)
			synctest.Wait()
			t.want(names...)
			if got := t.pool.Status().DropsTaints(); got != drops {
				t.Errorf("drops taints: %t, want %t", got, drops)
			}
			t.quiet()
		}
		want(false, devices("a", "b"), "a", "b")
		want(true, all, "a", "b")
		want(true, devices("a"), "a")
		want(true, devices("a", "c"), "a", "c")
		t.pool.Withdraw()
		synctest.Wait()
		want(true, devices("a"), "a")

		delete(t.api.gate, "taints")
		want(false, all, "a", "b")
	})
}

// A quantity that the API server stores in canonical form is neither reported as dropped nor written again.
func TestPoolQuantity(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		all := devices("a")
		all[0].Capacity["memory"] = Capacity{Value: "1024Mi"}
		t.pool.Want(all)
		synctest.Wait()
		t.want("a")
		if got := t.pool.Status().Dropped; got != nil {
			t.Errorf("dropped %v", got)
		}
		t.quiet()
	})
}

// A device that the API server refuses does not affect others.
func TestPoolRefusedDevices(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.api.invalid = func(device object) string {
			if strings.HasPrefix(text(device, "name"), "bad") {
				return strings.Repeat("too long ", 100)
			}
			return ""
		}
		t.start()
		all := append(manyDevices(70), devices("bad-1", "c", "bad-2")...)
		published := append(names(manyDevices(70)), "c")
		t.pool.Want(all)
		synctest.Wait()
		t.want(published...)
		refused := t.pool.Status().Refused
		if len(refused) != 2 || !strings.HasPrefix(refused["bad-2"], "spec.devices[8]: too long") || len(refused["bad-1"]) > reasonLimit {
			t.Errorf("refused %v", refused)
		}
		t.quiet()
		t.pool.Want(all[1:]) // withdraws one
		synctest.Wait()
		t.want(published[1:]...)
		all = slices.Clone(all)
		all[70].Name = "good"
		t.pool.Want(all)
		synctest.Wait()
		t.want(append(published[:70:70], "good", "c")...)
		if refused := t.pool.Status().Refused; len(refused) != 1 {
			t.Errorf("refused %v", refused)
		}
		t.api.setDown(true)
		t.wait(time.Minute)
		t.api.invalid = nil // as in another version of the API server
		t.api.setDown(false)
		t.wait(time.Second)
		t.want(names(all)...)
	})
}

// Slices of another writer are reported and not modified.
func TestPoolForeignSlices(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.api.create("00000-gpu.nvidia.com-node-x7k2p", testDriver, "node", 3, "gpu-0")
		t.api.create("00000-other.example.com-node-x7k2p", "other.example.com", "node", 3, "nic-0")
		t.start()
		synctest.Wait()
		want := []ForeignSlice{{Name: "00000-gpu.nvidia.com-node-x7k2p", Pool: "node", Manager: "someone", Generation: 3}}
		if s := t.pool.Status(); !slices.Equal(s.Foreign, want) || s.Since.IsZero() || len(s.Devices) > 0 {
			t.Errorf("status before the first Want: %+v", s)
		}
		before := clone(t.api.slices["00000-gpu.nvidia.com-node-x7k2p"])
		t.pool.Want(devices("a"))
		t.wait(10 * time.Minute)
		if s := t.pool.Status(); !slices.Equal(s.Devices, []string{"a"}) || !slices.Equal(s.Foreign, want) {
			t.Errorf("status %+v", s)
		}
		if after := clone(t.api.slices["00000-gpu.nvidia.com-node-x7k2p"]); !reflect.DeepEqual(before, after) {
			t.Errorf("foreign slice %v, before %v", after, before)
		}
		t.api.deleteAll()
		t.wait(time.Second)
		t.want("a")
		if s := t.pool.Status(); len(s.Foreign) > 0 {
			t.Errorf("foreign %v", s.Foreign)
		}
		for i := range 20 {
			t.api.create(fmt.Sprintf("00000-gpu.nvidia.com-node-%05d", i), testDriver, "node", 1)
		}
		t.wait(time.Second)
		if s := t.pool.Status(); len(s.Foreign) != maxForeign {
			t.Errorf("%d foreign", len(s.Foreign))
		}
	})
}

// Withdraw deletes the slices, so that a scheduler uses those of another driver of the same name.
func TestPoolWithdrawn(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		t.pool.Want(devices("a", "b"))
		t.wait(time.Second)
		t.want("a", "b")
		t.api.create("00000-gpu.nvidia.com-node-x7k2p", testDriver, "node", 1, "gpu-0")
		revision := t.pool.Withdraw()
		t.wait(time.Second)
		if again := t.pool.Withdraw(); again != revision {
			t.Errorf("revision %d, want %d", again, revision)
		}
		if got, ok := t.api.published(); !ok || !slices.Equal(got, []string{"gpu-0"}) {
			t.Errorf("published %v, complete: %t", got, ok)
		}
		t.wait(10 * time.Minute)
		if s := t.pool.Status(); len(s.Devices) > 0 || s.Revision != revision || s.Error != "" || len(t.api.slices) != 1 {
			t.Errorf("status %+v, slices %v", s, t.api.slices)
		}
		t.start() // as the agent does after a restart
		t.pool.Withdraw()
		t.wait(time.Minute)
		if len(t.api.slices) != 1 {
			t.Errorf("slices %v", t.api.slices)
		}
		t.api.deleteAll()
		if t.pool.Want(nil) == t.pool.Withdraw() {
			t.Error("an empty pool is not withdrawn")
		}
		t.pool.Want(devices("a"))
		t.wait(time.Second)
		t.want("a")
	})
}

// The garbage collector deletes the slices of a Node that is recreated. The new Node owns the slices that
// replace them.
func TestPoolNodeRecreated(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		t.pool.Want(devices("a"))
		synctest.Wait()
		t.api.mu.Lock()
		t.api.nodeUID = "node-uid-2"
		t.api.mu.Unlock()
		t.api.deleteAll()
		t.wait(time.Second)
		t.want("a")
		if owner := fmt.Sprint(meta(t.api.slices[testSliceName(0)])["ownerReferences"]); !strings.Contains(owner, "node-uid-2") {
			t.Errorf("owner %s", owner)
		}
	})
}

// After an outage the latest devices are published within the maximum backoff for its kind, plus the timeout of a
// request without a response. Devices that were wanted only during the outage are never published.
func TestPoolOutage(t *testing.T) {
	respond := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			failure(w, code, http.StatusText(code))
			return true
		}
	}
	for name, tc := range map[string]struct {
		before  func(http.ResponseWriter, *http.Request) bool // nil refuses connections
		returns time.Duration                                 // from the end of the outage to the publication
	}{
		"down":        {nil, time.Second},
		"no response": {func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, 11 * time.Second},
		"overloaded":  {respond(http.StatusTooManyRequests), 5 * time.Second},
		"unavailable": {respond(http.StatusServiceUnavailable), 5 * time.Second},
		"forbidden":   {respond(http.StatusForbidden), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			testPool(t, func(t *poolTest) {
				t.start()
				t.pool.Want(devices("a", "b"))
				t.wait(time.Second)
				set := func(before func(http.ResponseWriter, *http.Request) bool, down bool) {
					t.api.mu.Lock()
					t.api.before = before
					t.api.mu.Unlock()
					t.api.setDown(down)
				}
				set(tc.before, true) // also ends the watch
				if tc.before != nil {
					t.api.setDown(false)
				}
				for i := range 10 {
					t.wait(30 * time.Second)
					t.pool.Want(devices("a", fmt.Sprint("c", i)))
				}
				t.wait(20 * time.Second)
				if s := t.pool.Status(); s.Error == "" || s.Revision != 1 || !slices.Equal(s.Devices, []string{"a", "b"}) {
					t.Errorf("status during the outage: %+v", s)
				}
				set(nil, false)
				t.wait(tc.returns)
				t.want("a", "c9")
				if writes := t.api.written(); len(writes) != 2 {
					t.Errorf("writes %v", writes)
				}
			})
		})
	}
}

// A starting API server refuses requests for some seconds.
func TestPoolShortRefusal(t *testing.T) {
	testPool(t, func(t *poolTest) {
		begin := time.Now()
		t.api.before = func(w http.ResponseWriter, _ *http.Request) bool {
			if time.Since(begin) > 3*time.Second {
				return false
			}
			failure(w, http.StatusForbidden, "Forbidden")
			return true
		}
		t.start()
		t.pool.Want(devices("a"))
		t.wait(7 * time.Second)
		t.want("a")
	})
}

// The next list finds changes whose events were lost.
func TestPoolVerifies(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		t.pool.Want(devices("a"))
		synctest.Wait()
		t.api.muted = true
		t.api.deleteAll()
		t.wait(DefaultSpread + minSliceWatch + time.Second)
		t.want("a")
	})
}

// The pool tolerates watches that never end, end immediately or fail.
func TestPoolWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		watch     func(w http.ResponseWriter, r *http.Request)
		wantError string
		maxWait   time.Duration
	}{
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "", 2 * time.Minute},
		"none":      {func(http.ResponseWriter, *http.Request) {}, "", 2 * time.Second},
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) { failure(w, http.StatusForbidden, "Forbidden") }, "allow the service account", time.Minute},
		"expired": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}`)
		}, "too old", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			testPool(t, func(t *poolTest) {
				t.api.client.Spread = time.Minute
				watches := 0
				t.api.before = func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("watch") == "" {
						return false
					}
					watches++
					tc.watch(w, r)
					return true
				}
				t.start()
				t.pool.Want(devices("a"))
				t.wait(10 * time.Minute)
				if watches < 5 || watches > 900 {
					t.Errorf("%d watches in 10 minutes", watches)
				}
				if s := t.pool.Status(); !strings.Contains(s.Error, tc.wantError) || !slices.Equal(s.Devices, []string{"a"}) || s.Revision != 1 {
					t.Errorf("status %+v", s)
				}
				t.pool.Want(devices("b"))
				t.api.deleteAll()
				t.wait(tc.maxWait)
				if got, ok := t.api.published(); !ok || !slices.Equal(got, []string{"b"}) {
					t.Errorf("published %v", got)
				}
			})
		})
	}
}

// A request without a response may have been executed, or may be executed later. A device that the status reports as
// withdrawn never returns.
func TestPoolLostResponses(t *testing.T) {
	for name, tc := range map[string]struct{ late, refused bool }{
		"executed":                              {false, false},
		"executed later":                        {true, false},
		"executed later, after a refused retry": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			testPool(t, func(t *poolTest) {
				var delayed func() int
				var mu sync.Mutex
				lose, refuse := false, false
				set := func(loseNext, refuseAll bool) {
					mu.Lock()
					defer mu.Unlock()
					lose, refuse = loseNext, refuseAll
				}
				t.api.before = func(w http.ResponseWriter, r *http.Request) bool {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case r.Method == http.MethodGet:
						return false
					case !lose && refuse:
						failure(w, http.StatusForbidden, "Forbidden")
						return true
					case !lose:
						return false
					}
					lose = false
					body := readAll(t.T, r)
					delayed = func() int {
						response := newStatusRecorder()
						t.api.serve(response, r, body)
						return response.code
					}
					if !tc.late {
						delayed()
					}
					panic(http.ErrAbortHandler) // closes the connection
				}
				t.start()
				t.pool.Want(devices("a"))
				synctest.Wait()
				set(true, tc.refused)
				t.pool.Want(devices("a", "b"))
				synctest.Wait() // the request is lost
				if tc.refused {
					t.wait(time.Second)
				}
				set(false, false)
				revision := t.pool.Want(devices("a"))
				t.wait(time.Second)
				t.want("a")
				if s := t.pool.Status(); s.Revision < revision {
					t.Errorf("status %+v", s)
				}
				if tc.late {
					if code := delayed(); code != http.StatusConflict {
						t.Errorf("late request: %d", code)
					}
				}
				t.want("a")
				t.quiet()
			})
		})
	}
}

// The publication of a Want is reported as a change. A Want of the same devices is not a change.
func TestPoolChanges(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.start()
		synctest.Wait()
		<-t.pool.Changes() // the first list
		revision := t.pool.Want(devices("a"))
		<-t.pool.Changes()
		synctest.Wait()
		s := t.pool.Status()
		if s.Revision != revision || !slices.Equal(s.Devices, []string{"a"}) {
			t.Errorf("status %+v", s)
		}
		select {
		case <-t.pool.Changes(): // the write and the publication can be two changes
		default:
		}
		if again := t.pool.Want(devices("a")); again != revision {
			t.Errorf("revision %d, want %d", again, revision)
		}
		t.wait(10 * time.Minute)
		select {
		case <-t.pool.Changes():
			t.Errorf("change without a reason: %+v, before %+v", t.pool.Status(), s)
		default:
		}
		t.wait(time.Second)
		t.pool.Want(devices("b"))
		synctest.Wait()
		if now := t.pool.Status(); !now.Since.After(s.Since) {
			t.Errorf("since %v, before %v", now.Since, s.Since)
		}
	})
}

// Slices that an agent with another driver name has left behind are deleted.
func TestPoolOtherDriverName(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.api.create("00000-old.example.com-node-gpucdi", "old.example.com", "node", 1, "gpu-0")
		t.api.create("00000-old.example.com-other-gpucdi", "old.example.com", "other", 1, "gpu-0")
		t.start()
		t.pool.Want(devices("a"))
		synctest.Wait()
		t.want("a")
		if len(t.api.slices) != 2 || t.api.slices["00000-old.example.com-other-gpucdi"] == nil {
			t.Errorf("slices %v", t.api.slices)
		}
	})
}

// For an API server without DRA, the error contains the version that DRA requires.
func TestPoolWithoutDRA(t *testing.T) {
	testPool(t, func(t *poolTest) {
		t.api.before = func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true }
		t.start()
		synctest.Wait()
		if s := t.pool.Status(); !strings.Contains(s.Error, "404 page not found; DRA requires Kubernetes 1.34") || !s.Since.IsZero() {
			t.Errorf("status %+v", s)
		}
	})
}

// Without a token the status contains the error, and the pool recovers once there is a token.
func TestPoolWithoutCredentials(t *testing.T) {
	testPool(t, func(t *poolTest) {
		token := filepath.Join(t.api.client.credentials, "token")
		saved, err := os.ReadFile(token)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(token); err != nil {
			t.Fatal(err)
		}
		t.start()
		t.pool.Want(devices("a"))
		t.wait(time.Minute)
		if s := t.pool.Status(); !strings.Contains(s.Error, "token") {
			t.Errorf("status %+v", s)
		}
		if err := os.WriteFile(token, saved, 0o600); err != nil {
			t.Fatal(err)
		}
		t.wait(time.Second)
		t.want("a")
	})
}
