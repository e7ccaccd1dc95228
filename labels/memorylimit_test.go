package labels_test

import (
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/labels"
)

// The label describes the GPUs that are not excluded, and a new driver changes it like a version.
func TestMemoryLimits(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIG: gpu.MIGEnabled, MemoryLimits: gpu.MemoryLimitsMIG},
		{UUID: "GPU-b", Index: 1, MemoryLimits: gpu.MemoryLimitsSupported},
	}}
	of := func(rules allocator.Rules) map[string]string { return labels.Of(inv, allocator.MIGNone, rules, "") }
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
	inv.GPUs[0].MemoryLimits, inv.GPUs[1].MemoryLimits = "", ""
	if got, set := of(nil)[labels.MemoryLimits]; set {
		t.Errorf("unknown limits: %q", got)
	}
}

// The labels have the weakest isolation of the devices that are not excluded. A driver that no longer limits memory
// changes it at once, since pods select nodes by it.
func TestIsolation(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a", Profile: "1g.10gb"}}},
		{UUID: "GPU-b", Index: 1, MemoryBytes: 80 << 30, MemoryLimits: gpu.MemoryLimitsSupported},
		{UUID: "GPU-c", Index: 2, Fault: gpu.Gone()},
	}}
	limited := allocator.Rule{Name: allocator.GPUResource, Replicas: 4, Limits: allocator.LimitMemory, Level: allocator.LevelAny}
	replicas := allocator.Rule{Name: "nvidia.com/mig-1g.10gb", Replicas: 2}
	of := func(rules ...allocator.Rule) map[string]string { return labels.Of(inv, allocator.MIGMixed, rules, "") }
	for _, tc := range []struct {
		rules []allocator.Rule
		want  string
	}{
		{nil, "hardware hardware"},
		{[]allocator.Rule{limited}, "driver timeslice"},
		{[]allocator.Rule{limited, replicas}, "none timeslice"},
		{[]allocator.Rule{{Select: allocator.Selector{UUID: []string{"GPU-b"}}, Exclude: true}, limited}, "hardware hardware"},
		{[]allocator.Rule{{Select: allocator.Selector{UUID: []string{"GPU-*"}}, Exclude: true}}, " "},
	} {
		l := of(tc.rules...)
		if got := l[labels.MemoryIsolation] + " " + l[labels.ComputeIsolation]; got != tc.want {
			t.Errorf("with rules %+v: %q, want %q", tc.rules, got, tc.want)
		}
	}
	before := of(limited)
	inv.GPUs[1].MemoryLimits = gpu.MemoryLimitsOldDriver
	if after := of(limited); after[labels.MemoryIsolation] != "none" || labels.Routine(before, after) {
		t.Errorf("with an old driver: %v", after)
	}
}
