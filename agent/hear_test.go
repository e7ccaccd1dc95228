package agent

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// What is learned of a fault later is told too, and only once.
func TestAReasonThatBecomesClear(t *testing.T) {
	node := host.NewRoot(t.TempDir())
	n := newNode(New(Config{Node: node, CDIDir: t.TempDir()}, slog.New(slog.DiscardHandler)), nil)
	n.known = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a"}, {UUID: "MIG-b"}}}, {UUID: "GPU-b"}}}
	tell := func() {
		n.offered = n.known.WithFaults(func(uuid string) string { return n.health.Health(uuid).Reason })
	}
	reset := health.RecoveryReset
	probe := func() { n.probe(driver.Probes{"GPU-a": {}, "GPU-b": {Recovery: &reset}}, time.Now()) }
	xid := func(code int, gpu string, mig ...string) func() {
		return func() { n.hearXID(driver.XID{GPU: gpu, MIG: mig, Code: code}, time.Now()) }
	}
	probe()
	tell()
	for _, tc := range []struct {
		name     string
		happens  func()
		reworded bool
	}{
		{"nothing new", probe, false},
		{"an XID says why the driver asks for a reset", xid(48, "GPU-b"), true},
		{"nothing new", probe, false},
		{"a MIG device becomes unhealthy", xid(48, "GPU-a", "MIG-b"), false}, // which is told at once
		{"for another reason", xid(64, "GPU-a", "MIG-b"), true},
		{"nothing new", probe, false},
	} {
		tc.happens()
		if got := slices.ContainsFunc(n.offered.GPUs, n.reworded); got != tc.reworded {
			t.Errorf("%s: the reason is another: %v", tc.name, got)
		}
		tell()
	}
}
