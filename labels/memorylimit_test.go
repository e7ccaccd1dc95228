package labels_test

import (
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/labels"
)

// The label describes the GPUs that are not excluded. Like the version labels, it changes with the driver, so its
// change is routine.
func TestMemoryLimits(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIG: gpu.MIGEnabled, MemoryLimits: gpu.MemoryLimitsMIG},
		{UUID: "GPU-b", Index: 1, MemoryLimits: gpu.MemoryLimitsSupported},
	}}
	of := func(rules allocator.Rules) map[string]string {
		return labels.Of(inv, allocator.Policy{MIG: allocator.MIGNone, Rules: rules}, "")
	}
	excluded := of(allocator.Rules{{Select: allocator.Selector{UUID: []string{"GPU-b"}}, Exclude: true}})
	all := of(nil)
	if got := all[labels.MemoryLimits]; got != "supported" {
		t.Errorf("with a GPU that supports limits: %q", got)
	}
	if got := excluded[labels.MemoryLimits]; got != "mig-mode" {
		t.Errorf("with that GPU excluded: %q", got)
	}
	inv.GPUs[1].MemoryLimits = gpu.MemoryLimitsOldDriver
	if before := of(nil); before[labels.MemoryLimits] != "mig-mode" || !labels.Routine(before, all) {
		t.Errorf("a driver upgrade from %v to %v is not routine", before, all)
	}
	for _, reason := range []gpu.MemoryLimits{gpu.MemoryLimitsOldDriver, gpu.MemoryLimitsCgroupV1, gpu.MemoryLimitsNoPods} {
		inv.GPUs[0].MemoryLimits, inv.GPUs[1].MemoryLimits = reason, reason
		if got := of(nil)[labels.MemoryLimits]; got != string(reason) {
			t.Errorf("with the reason %q: %q", reason, got)
		}
	}
	inv.GPUs[0].MemoryLimits, inv.GPUs[1].MemoryLimits = "", ""
	if got, set := of(nil)[labels.MemoryLimits]; set {
		t.Errorf("unknown limits: %q", got)
	}
}
