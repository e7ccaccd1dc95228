package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// timeSlices are the time slices of a node's GPUs, by UUID.
type timeSlices struct {
	mu     sync.Mutex
	slices map[string]gpu.TimeSlice
	before func(ctx context.Context, uuid string) error // may be nil
}

// newSlicedNode returns a node, and the time slices of its GPUs.
func newSlicedNode(t *testing.T) (*node, *timeSlices) {
	t.Helper()
	n, s := newNode(t), &timeSlices{slices: map[string]gpu.TimeSlice{}}
	n.cfg.SetTimeSlice = s.set
	n.restart()
	return n, s
}

func (s *timeSlices) set(ctx context.Context, uuid string, slice gpu.TimeSlice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		if err := s.before(ctx, uuid); err != nil {
			return err
		}
	}
	s.slices[uuid] = slice
	return nil
}

// check checks the time slices, in the form UUID=Slice.
func (s *timeSlices) check(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, uuid := range slices.Sorted(maps.Keys(s.slices)) {
		got = append(got, uuid+"="+string(s.slices[uuid]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("time slices %v, want %v", got, want)
	}
}

// addSliced adds a claim that requests a time slice for its GPUs to the API server.
func (n *node) addSliced(name string, slice gpu.TimeSlice, gpus ...string) {
	claim := allocated(name, gpus...)
	claim.Config = []cluster.ClaimConfig{{Driver: testDriver, Parameters: json.RawMessage(fmt.Sprintf(`{"apiVersion":%q,"kind":"GpuConfig",
"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":%q}}}`, parametersVersion, slice))}}
	n.claims.set(name, claim)
}

func TestTimeSlices(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("a", gpu.TimeSliceLong, "0", "1")
	n.add("b", "2")
	n.prepares("a", "0", "1")
	n.prepares("b", "2")
	s.check(t, "GPU-0=Long", "GPU-1=Long")
	s.slices["GPU-0"] = gpu.TimeSliceDefault // a reset GPU loses it
	n.restart()
	n.prepares("a", "0", "1")
	s.check(t, "GPU-0=Long", "GPU-1=Long")
	n.restart()
	n.unprepares("a")
	n.unprepares("b")
	s.check(t, "GPU-0=Default", "GPU-1=Default")
	n.recorded()
}

// A claim that is allocated again gets its new time slice.
func TestTimeSliceOfNextAllocation(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("a", gpu.TimeSliceLong, "0")
	n.prepares("a", "0")
	n.addSliced("a", gpu.TimeSliceShort, "0")
	n.prepares("a", "0")
	s.check(t, "GPU-0=Short")
	n.add("a", "0")
	n.prepares("a", "0")
	s.check(t, "GPU-0=Default")
}

// A time slice is recorded before it is set, and reset before the record is removed.
func TestTimeSliceRecorded(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("b", gpu.TimeSliceLong, "0")
	s.before = func(context.Context, string) error {
		devices, _ := n.readFile("uid-b")["devices"].([]any)
		if len(devices) != 1 || devices[0].(map[string]any)["timeSlice"] != "Long" {
			t.Errorf("recorded devices %v", devices)
		}
		return nil
	}
	n.prepares("b", "0")
	n.unprepares("b")
	s.check(t, "GPU-0=Default")
}

func TestTimeSliceFails(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("a", gpu.TimeSliceLong, "0", "1")
	failure := errors.New("nvidia-smi failed")
	s.before = func(_ context.Context, uuid string) error {
		if uuid == "GPU-1" {
			return failure
		}
		return nil
	}
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "time slice not set: Long of GPU-1: nvidia-smi failed") {
		t.Errorf("error %v", err)
	}
	failure = errors.ErrUnsupported
	if _, err := n.prepare("a"); err == nil {
		t.Error("no error for a GPU without time slices")
	}
	if got := []Refusal{n.observer.prepared[0].Refusal, n.observer.prepared[1].Refusal}; !slices.Equal(got, []Refusal{RefusedDriver, RefusedConfig}) {
		t.Errorf("refusals %v", got)
	}
	n.unprepares("a")
	s.check(t, "GPU-0=Default")
	n.recorded()
	n.addSliced("a", gpu.TimeSliceDefault, "1")
	n.prepares("a", "1")
}

// A GPU that hangs does not delay the end of the claim's pods for long.
func TestTimeSliceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := newSlicedNode(t)
		n.addSliced("a", gpu.TimeSliceLong, "0")
		n.prepares("a", "0")
		s.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		start := time.Now()
		n.unprepares("a")
		if took := time.Since(start); took != settingTimeout {
			t.Errorf("took %s", took)
		}
		n.recorded()
	})
}

// If the agent ends while it resets a time slice, the record remains for the next one.
func TestTimeSliceResetInterrupted(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("a", gpu.TimeSliceLong, "0")
	n.prepares("a", "0")
	running, stop := context.WithCancel(t.Context())
	n.service.running = running
	s.before = func(ctx context.Context, _ string) error { stop(); <-ctx.Done(); return ctx.Err() }
	if err := n.unprepare("a"); err == nil || !strings.Contains(err.Error(), "the driver is stopping") {
		t.Errorf("error %v", err)
	}
	n.recorded("uid-a")
	n.restart()
	s.before = nil
	n.unprepares("a")
	s.check(t, "GPU-0=Default")
	n.recorded()
}

func TestTimeSliceWithAdminAccess(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("a", gpu.TimeSliceLong, "0")
	claim := n.claims.claims["default/a"]
	claim.Devices[0].AdminAccess = true
	n.claims.set("a", claim)
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "parameters.sharing: request gpu-0 has adminAccess") {
		t.Errorf("error %v", err)
	}
	s.check(t)
	n.recorded()
}

// Lost time slices of prepared claims are restored. Claims whose GPU fails are returned, and skipped once they have ended.
func TestRestoreTimeSlices(t *testing.T) {
	n, s := newSlicedNode(t)
	n.addSliced("a", gpu.TimeSliceLong, "0")
	n.addSliced("b", gpu.TimeSliceShort, "1")
	n.add("c", "2")
	n.prepares("a", "0")
	n.prepares("b", "1")
	n.prepares("c", "2")
	n.restart()
	clear(s.slices)
	s.before = func(_ context.Context, uuid string) error {
		if uuid == "GPU-1" {
			return errors.New("nvidia-smi failed")
		}
		return nil
	}
	failed := n.driver.RestoreTimeSlices(t.Context(), n.driver.Records())
	s.check(t, "GPU-0=Long")
	if got := uids(failed); !slices.Equal(got, []string{"uid-b"}) {
		t.Errorf("failed for %v", got)
	}
	clear(s.slices)
	s.before = nil
	if left := n.driver.RestoreTimeSlices(t.Context(), failed); len(left) > 0 {
		t.Errorf("failed for %v", uids(left))
	}
	s.check(t, "GPU-1=Short")
	n.unprepares("b")
	if left := n.driver.RestoreTimeSlices(t.Context(), failed); len(left) > 0 {
		t.Errorf("failed for %v", uids(left))
	}
	s.check(t, "GPU-1=Default")
}

// A time slice is not restored after the end of the claim, whichever call starts first. A restore does not wait long for
// a call that is in progress.
func TestRestoreWhileClaimEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, restoreFirst := range map[string]bool{"a": true, "b": false} {
			n, s := newSlicedNode(t)
			n.addSliced(name, gpu.TimeSliceLong, "0")
			n.prepares(name, "0")
			records := n.driver.Records()
			calls := []func(){func() { n.driver.RestoreTimeSlices(t.Context(), records) }, func() { n.unprepares(name) }}
			if !restoreFirst {
				slices.Reverse(calls)
			}
			n.driver.cfg.SetTimeSlice = func(ctx context.Context, uuid string, slice gpu.TimeSlice) error {
				if slice == gpu.TimeSliceLong {
					time.Sleep(time.Second) // a concurrent reset would come first
				}
				time.Sleep(time.Second)
				return s.set(ctx, uuid, slice)
			}
			var running sync.WaitGroup
			for _, call := range calls {
				running.Go(call)
				synctest.Wait()
			}
			running.Wait()
			s.check(t, "GPU-0=Default")
			n.recorded()
		}
		n, _ := newSlicedNode(t)
		n.addSliced("c", gpu.TimeSliceLong, "0")
		n.prepares("c", "0")
		if err := n.driver.locks.lock(t.Context(), "uid-c"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		failed := n.driver.RestoreTimeSlices(t.Context(), n.driver.Records())
		if took := time.Since(start); len(failed) != 1 || took != settingTimeout {
			t.Errorf("after %s: failed for %v", took, uids(failed))
		}
	})
}

// A time slice is reset even if the nvidia-smi of an earlier call that timed out has not exited yet.
func TestTimeSliceResetAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := newSlicedNode(t)
		n.addSliced("a", gpu.TimeSliceLong, "0")
		n.prepares("a", "0")
		start := time.Now()
		s.before = func(context.Context, string) error {
			if time.Since(start) < settingTimeout/2 {
				return host.ErrNotExited
			}
			return nil
		}
		n.unprepares("a")
		s.check(t, "GPU-0=Default")
	})
}
