package devicemanager

import (
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// GPUs that hang at the same time cost two call timeouts, not one each: the driver worker is replaced
// twice.
func TestGPUsThatHangTogether(t *testing.T) {
	n, k := both(t)
	before := n.counted(t)["nvmlInit_v2"]
	happened := time.Now()
	for _, gpu := range n.uuids() {
		if err := n.driver.Break(simdriver.Fault{GPU: gpu, Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	k.counts(t, 8, 0)
	t.Logf("all known after %s", time.Since(happened).Round(100*time.Millisecond))
	if workers := n.counted(t)["nvmlInit_v2"] - before; workers > 2 {
		t.Errorf("the driver worker was replaced %d times, want 2", workers)
	}
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 8)
}

// A GPU is healthy again although another one goes on ending each worker that tries it.
func TestRecoveryBesideAGPUThatCrashes(t *testing.T) {
	n, k := both(t)
	gpus := n.uuids()
	for _, gpu := range []string{gpus[1], gpus[5]} {
		if err := n.driver.Break(simdriver.Fault{GPU: gpu, Func: "nvmlDeviceGetTotalEccErrors", Crash: true}); err != nil {
			t.Fatal(err)
		}
	}
	k.counts(t, 8, 6)
	err := n.driver.Update(func(s *simdriver.State) error {
		s.Faults = slices.DeleteFunc(s.Faults, func(f simdriver.Fault) bool { return f.GPU == gpus[1] })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 7)
}
