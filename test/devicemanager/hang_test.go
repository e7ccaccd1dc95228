package devicemanager

import (
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// If several GPUs hang simultaneously, all are detected within two call timeouts, not one after the other: the driver
// worker is replaced at most twice.
func TestSimultaneousHangs(t *testing.T) {
	t.Parallel()
	// The calls about all GPUs must start within one call timeout. On a busy machine that takes more than a second.
	n, k := startNode(t, "health: {probeInterval: 1s, quietPeriod: 3s, callTimeout: 5s}")
	before := n.nvmlCallCounts(t)["nvmlInit_v2"]
	injected := time.Now()
	err := n.driver.Update(func(s *simdriver.State) error { // all at once, since a probe may start at any time
		for _, gpu := range s.GPUs {
			s.Faults = append(s.Faults, simdriver.Fault{GPU: gpu.UUID, Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 0)
	t.Logf("all hangs detected after %s", time.Since(injected).Round(100*time.Millisecond))
	if workers := n.nvmlCallCounts(t)["nvmlInit_v2"] - before; workers > 2 {
		t.Errorf("the driver worker was replaced %d times, want at most 2", workers)
	}
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 8)
}

// A GPU recovers while another GPU still crashes each driver worker that probes it.
func TestRecoveryDespiteCrashingGPU(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	gpus := n.uuids()
	for _, gpu := range []string{gpus[1], gpus[5]} {
		if err := n.driver.InjectFault(simdriver.Fault{GPU: gpu, Func: "nvmlDeviceGetTotalEccErrors", Crash: true}); err != nil {
			t.Fatal(err)
		}
	}
	k.awaitGPUs(t, 8, 6)
	err := n.driver.Update(func(s *simdriver.State) error {
		s.Faults = slices.DeleteFunc(s.Faults, func(f simdriver.Fault) bool { return f.GPU == gpus[1] })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 7)
}
