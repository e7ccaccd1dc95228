package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"
)

// The slices match the latest devices after any sequence of changes, interventions and failures, and a scheduler uses
// no device that the status reports as withdrawn.
func TestPoolRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range uint64(6) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, i))
			testPool(t, func(t *poolTest) { t.random(random) })
		})
	}
}

func (t *poolTest) random(random *rand.Rand) {
	failing, failures := false, rand.New(rand.NewPCG(random.Uint64(), 0))
	t.api.before = func(w http.ResponseWriter, r *http.Request) bool {
		t.api.mu.Lock()
		fail, kind := failing && failures.IntN(3) == 0, failures.IntN(4)
		t.api.mu.Unlock()
		if !fail {
			return false
		}
		switch kind {
		case 0:
			failure(w, http.StatusInternalServerError, "error")
		case 1:
			failure(w, http.StatusConflict, "Conflict")
		case 2:
			t.api.serve(newStatusRecorder(), r, readAll(t.T, r))
			panic(http.ErrAbortHandler) // executed without a response
		default:
			panic(http.ErrAbortHandler)
		}
		return true
	}
	set := func(fail bool) {
		t.api.mu.Lock()
		failing = fail
		t.api.mu.Unlock()
	}
	t.start()
	var want []Device
	for range 30 {
		switch random.IntN(10) {
		case 0:
			t.api.deleteAll()
		case 1:
			t.api.tamper(random)
		case 2:
			set(!failing)
		case 3:
			t.start()
			t.pool.Want(want)
		case 4:
			t.api.setDown(true)
			t.wait(time.Duration(random.Int64N(int64(time.Minute))))
			t.api.setDown(false)
		default:
			want = randomDevices(random)
			revision := t.pool.Want(want)
			t.wait(time.Duration(random.Int64N(int64(3 * time.Second))))
			t.checkWithdrawn(revision, names(want))
		}
	}
	set(false)
	t.wait(2 * time.Minute)
	t.pool.Want(want)
	t.wait(time.Second)
	t.want(names(want)...)
	t.api.written()
	t.wait(5 * time.Minute)
	if writes := t.api.written(); len(writes) > 0 {
		t.Errorf("%d writes without a change", len(writes))
	}
}

// checkWithdrawn checks that once a revision is published, each device that a scheduler uses is wanted or in the
// status.
func (t *poolTest) checkWithdrawn(revision uint64, want []string) {
	t.Helper()
	if t.pool.Status().Revision < revision {
		return
	}
	published, _ := t.api.published()
	for _, device := range published {
		if !slices.Contains(want, device) && !slices.Contains(t.pool.Status().Devices, device) {
			t.Errorf("%s is published, status %+v", device, t.pool.Status())
		}
	}
}

func randomDevices(random *rand.Rand) []Device {
	all := manyDevices([]int{0, 1, 8, 66}[random.IntN(4)])
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		if random.IntN(4) == 0 {
			all[i].Taints = []Taint{{Key: "key", Value: fmt.Sprint(random.IntN(2)), Effect: NoSchedule}}
		}
	}
	return all
}

// tamper changes or deletes a slice.
func (f *fakeAPI) tamper(random *rand.Rand) {
	f.mu.Lock()
	names := []string{}
	for name := range f.slices {
		names = append(names, name)
	}
	f.mu.Unlock()
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	name := names[random.IntN(len(names))]
	switch random.IntN(4) {
	case 0:
		f.mu.Lock()
		f.remove(name)
		f.mu.Unlock()
	case 1:
		f.edit(name, func(s object) { delete(spec(s), "devices") })
	case 2:
		f.edit(name, func(s object) { spec(s)["pool"].(object)["generation"] = random.IntN(5) })
	default:
		f.edit(name, func(s object) { delete(meta(s), "ownerReferences") })
	}
}
