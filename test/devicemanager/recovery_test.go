package devicemanager

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// A fatal XID is a fault until the GPU disappears and returns. A crash of the driver worker does not clear it, because
// the crash does not show that the GPU disappeared.
func TestFatalXIDSurvivesWorkerCrash(t *testing.T) {
	t.Parallel()
	const auxiliaryPower = 54
	n, k := startNode(t)
	if err := n.driver.RaiseXID(n.uuids()[5], auxiliaryPower); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 7)
	if err := n.driver.InjectFault(simdriver.Fault{Func: "nvmlEventSetWait_v2", Crash: true}); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 0)
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 7)
	// The probes, one a second, last longer than the quiet period of 3 s. Each calls the function once for each GPU.
	const probes, gpus = 5, 8
	n.awaitCalls(t, "nvmlDeviceGetTemperature", n.nvmlCallCounts(t)["nvmlDeviceGetTemperature"]+probes*gpus)
	k.awaitGPUs(t, 8, 7)
}

// NVML reports an XID only once, so the agent must save its fault.
func TestXIDsSurviveAgentRestart(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "health: {probeInterval: 1s, quietPeriod: 1h, callTimeout: 2s}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	for i, xid := range []int{79, 48, 54, 9999} {
		if err := n.driver.RaiseXID(n.uuids()[i], xid); err != nil {
			t.Fatal(err)
		}
	}
	k.awaitGPUs(t, 8, 4)
	since := n.awaitDevice(t, n.uuids()[1], "xid_48").Fault.Since
	for name, stop := range map[string]func(*testing.T){"killed": n.killAgent, "stopped": n.stopAgent} {
		stop(t)
		k.awaitGPUs(t, 8, 0)
		n.startAgent(t)
		k.awaitGPUs(t, 8, 4)
		if again := n.awaitDevice(t, n.uuids()[1], "xid_48").Fault.Since; again.Unix() != since.Unix() {
			t.Errorf("%s and restarted: the fault began at %s, want %s", name, again, since)
		}
	}
}

// With unreadable or unwritable saved state, the agent still advertises all GPUs and detects faults.
func TestCorruptState(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		damage func(dir string) error
		logged string
	}{
		{"truncated file", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"faults": {"GPU-`), 0o600))
		}, "saved state damaged"},
		{"wrong type", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"faults": [1]}`), 0o600))
		}, "saved state damaged"},
		{"FIFO", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), unix.Mkfifo(filepath.Join(dir, "state.json"), 0o600))
		}, "saved state damaged"},
		{"file in place of the directory", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, "state not saved"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, simdriver.H100x8())
			if err := tc.damage(n.stateDir); err != nil {
				t.Fatal(err)
			}
			n.configure(t, longQuiet)
			k := startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			k.awaitGPUs(t, 8, 8)
			if err := n.driver.RaiseXID(n.uuids()[1], 48); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, 8, 7)
			n.awaitDevice(t, n.uuids()[1], "xid_48")
			n.stopAgent(t)
			if !strings.Contains(n.logs.String(), tc.logged) {
				t.Errorf("%q is not logged:\n%s", tc.logged, n.logs)
			}
		})
	}
}
