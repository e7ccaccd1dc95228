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

// A driver worker that crashes says nothing of whether a GPU was away: a fault that only the
// GPU's return clears outlives it.
func TestAFatalXIDOutlivesTheWorker(t *testing.T) {
	const auxiliaryPower = 54
	n, k := both(t)
	if err := n.driver.RaiseXID(n.uuids()[5], auxiliaryPower); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 7)
	if err := n.driver.Break(simdriver.Fault{Func: "nvmlEventSetWait_v2", Crash: true}); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 0)
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 7)
	// More rounds of probes, one a second, than the quiet period of 3 s has.
	const rounds, gpus = 6, 8
	n.awaitCalls(t, "nvmlDeviceGetTotalEccErrors", n.counted(t)["nvmlDeviceGetTotalEccErrors"]+rounds*gpus)
	k.counts(t, 8, 7)
}

// XIDs are events that nothing repeats, so an agent restart must not forget them.
func TestAnAgentRestartForgetsNoXID(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "health: {probeInterval: 1s, quietPeriod: 1h, callTimeout: 2s}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	for i, xid := range []int{79, 48, 54, 9999} {
		if err := n.driver.RaiseXID(n.uuids()[i], xid); err != nil {
			t.Fatal(err)
		}
	}
	k.counts(t, 8, 4)
	since := n.awaitDevice(t, n.uuids()[1], "xid_48").Fault.Since
	for name, end := range map[string]func(*testing.T){"killed": n.killAgent, "stopped": n.stopAgent} {
		end(t)
		k.counts(t, 8, 0)
		n.startAgent(t)
		k.counts(t, 8, 4)
		if again := n.awaitDevice(t, n.uuids()[1], "xid_48").Fault.Since; again.Unix() != since.Unix() {
			t.Errorf("%s and started again: the fault is since %s, before %s", name, again, since)
		}
	}
}

// Saved state that cannot be read or written costs caution, never availability.
func TestDamagedState(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"half a file": func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"faults": {"GPU-`), 0o600))
		},
		"another type": func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"faults": [1]}`), 0o600))
		},
		"a FIFO": func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), unix.Mkfifo(filepath.Join(dir, "state.json"), 0o600))
		},
		"no directory": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, simdriver.H100x8())
			if err := damage(n.stateDir); err != nil {
				t.Fatal(err)
			}
			k := startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			k.counts(t, 8, 8)
			if err := n.driver.RaiseXID(n.uuids()[1], 48); err != nil {
				t.Fatal(err)
			}
			k.counts(t, 8, 7)
			n.awaitDevice(t, n.uuids()[1], "xid_48") // and the spec without it is written
			n.stopAgent(t)
			if !strings.Contains(n.said.String(), "state") {
				t.Errorf("the agent does not report it:\n%s", n.said)
			}
		})
	}
}
