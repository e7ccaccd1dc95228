package agent

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// A more specific reason for an existing fault triggers one reconcile, with the next probe.
func TestFaultReasonUpdate(t *testing.T) {
	cfg := Config{Node: host.NewRoot(t.TempDir()), CDIDir: t.TempDir()}
	a := New(cfg, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(allocator.NewGate(time.Now), a.newComputeLimits(nil, nil), nil, newTriggers(nil)), newSnapshot())
	l.known = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a"}, {UUID: "MIG-b"}}}, {UUID: "GPU-b"}}}
	l.plan = &plan{inventory: l.withDeviceFaults(cdi.Parts{})}
	// An unchanged spec triggers no reconcile.
	device := specs.Device{Name: "GPU-a", ContainerEdits: specs.ContainerEdits{Env: []string{"A=b"}}}
	put := func() {
		if _, err := l.spec.Put(&specs.Spec{Version: "0.5.0", Kind: cdi.AgentKind, Devices: []specs.Device{device}}); err != nil {
			t.Fatal(err)
		}
	}
	if put(); !l.receive(driver.Probes{}, time.Now()) {
		t.Error("driver files may have changed before the first spec was written, but are not inspected again")
	}
	put()
	reset := health.RecoveryReset
	probes := driver.Probes{"GPU-a": {}, "GPU-b": {Recovery: &reset}}
	for _, tc := range []struct {
		name      string
		report    driver.Report
		reconcile bool
	}{
		{"the driver requires a reset", probes, true},
		{"no change", probes, false},
		{"an XID gives the reason", driver.XID{GPU: "GPU-b", Code: 48}, false},
		{"the next probe", probes, true},
		{"no change", probes, false},
		{"a MIG device becomes unhealthy", driver.XID{GPU: "GPU-a", MIG: []string{"MIG-b"}, Code: 48}, true},
		{"for another reason", driver.XID{GPU: "GPU-a", MIG: []string{"MIG-b"}, Code: 64}, false},
		{"the next probe", driver.Probes{}, true},
		{"no change", driver.Probes{}, false},
	} {
		reconcile := l.receive(tc.report, time.Now())
		if reconcile != tc.reconcile {
			t.Errorf("%s: reconcile is %v, want %v", tc.name, reconcile, tc.reconcile)
		}
		if reconcile {
			l.plan = &plan{inventory: l.withDeviceFaults(cdi.Parts{})}
		}
	}
	// Only probes check the spec on disk: XIDs can arrive by the hundred.
	if err := os.Remove(l.spec.Path); err != nil {
		t.Fatal(err)
	}
	if l.receive(driver.XID{GPU: "GPU-b", Code: 48}, time.Now()) {
		t.Error("an XID triggers a check of the spec")
	}
	if !l.receive(driver.Probes{}, time.Now()) {
		t.Error("probes do not trigger a check of the spec")
	}
}
