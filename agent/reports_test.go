package agent

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// What is learned of a fault later is told too, with the next probe, and only once.
func TestAReasonThatBecomesClear(t *testing.T) {
	cfg := Config{Node: host.NewRoot(t.TempDir()), CDIDir: t.TempDir()}
	a := New(cfg, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(nil, newTriggers(nil)), newSnapshot())
	l.known = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a"}, {UUID: "MIG-b"}}}, {UUID: "GPU-b"}}}
	l.plan = &plan{inventory: l.withOwnFaults(cdi.Parts{})}
	// A spec that nobody touches, so that nothing else is to be done.
	device := specs.Device{Name: "GPU-a", ContainerEdits: specs.ContainerEdits{Env: []string{"A=b"}}}
	if _, err := l.spec.Put(&specs.Spec{Version: "0.5.0", Kind: cdi.AgentKind, Devices: []specs.Device{device}}); err != nil {
		t.Fatal(err)
	}
	reset := health.RecoveryReset
	probes := driver.Probes{"GPU-a": {}, "GPU-b": {Recovery: &reset}}
	for _, tc := range []struct {
		name   string
		report driver.Report
		work   bool
	}{
		{"the driver asks for a reset", probes, true},
		{"nothing new", probes, false},
		{"an XID says why", driver.XID{GPU: "GPU-b", Code: 48}, false},
		{"the next probe", probes, true},
		{"nothing new", probes, false},
		{"a MIG device becomes unhealthy", driver.XID{GPU: "GPU-a", MIG: []string{"MIG-b"}, Code: 48}, true},
		{"for another reason", driver.XID{GPU: "GPU-a", MIG: []string{"MIG-b"}, Code: 64}, false},
		{"the next probe", driver.Probes{}, true},
		{"nothing new", driver.Probes{}, false},
	} {
		work := l.receive(tc.report, time.Now())
		if work != tc.work {
			t.Errorf("%s: something is to be done: %v", tc.name, work)
		}
		if work {
			l.plan = &plan{inventory: l.withOwnFaults(cdi.Parts{})} // as the kubelet is told
		}
	}
	// What becomes of the spec is looked at with the probes alone: XIDs can come by the hundred.
	if err := os.Remove(l.spec.Path); err != nil {
		t.Fatal(err)
	}
	if l.receive(driver.XID{GPU: "GPU-b", Code: 48}, time.Now()) {
		t.Error("an XID leads to a look at the spec")
	}
	if !l.receive(driver.Probes{}, time.Now()) {
		t.Error("probes lead to no look at the spec")
	}
}
