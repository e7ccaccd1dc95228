package labels_test

import (
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/labels"
)

// The labels have the weakest isolation of the devices that are not excluded. If the driver can no longer limit memory,
// Routine reports false, since pods select nodes by these labels.
func TestIsolation(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a", Profile: "1g.10gb"}}},
		{UUID: "GPU-b", Index: 1, MemoryBytes: 80 << 30, MemoryLimits: gpu.MemoryLimitsSupported},
		{UUID: "GPU-c", Index: 2, Fault: gpu.Gone()},
	}}
	limited := allocator.Rule{Name: allocator.GPUResource, Replicas: 4, Limits: allocator.LimitMemory, Level: allocator.LevelAny}
	replicas := allocator.Rule{Name: "nvidia.com/mig-1g.10gb", Replicas: 2}
	of := func(rules ...allocator.Rule) map[string]string {
		return labels.Of(inv, allocator.Policy{MIG: allocator.MIGMixed, Rules: rules}, "")
	}
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
	strict := limited
	strict.Level = ""
	inv.GPUs[1].MemoryLimits = "" // unknown for a moment, for example while the driver worker is replaced
	if now := of(strict); now[labels.MemoryIsolation] != "driver" {
		t.Errorf("while it is unknown whether memory can be limited: %v", now)
	}
	for _, limits := range []gpu.MemoryLimits{gpu.MemoryLimitsOldDriver, gpu.MemoryLimitsCgroupV1, gpu.MemoryLimitsNoPods} {
		inv.GPUs[1].MemoryLimits = limits
		for _, rule := range []allocator.Rule{limited, strict} {
			if after := of(rule); after[labels.MemoryIsolation] != "none" || labels.Routine(before, after) {
				t.Errorf("with memory limits %q and level %q: %v", limits, rule.Level, after)
			}
		}
	}
}

// The compute isolation depends on the shares of claims, not only on the rules.
func TestIsolationOfShares(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 80 << 30, MemoryLimits: gpu.MemoryLimitsSupported}}}
	policy := allocator.Policy{Mode: allocator.ModeDRA, Shares: allocator.DefaultShares(),
		Rules: allocator.Rules{{Name: allocator.GPUResource, Share: allocator.ShareMemory}}}
	for compute, want := range map[allocator.Compute]string{allocator.ComputeCeiling: "ceiling", allocator.DefaultShares().Compute: "timeslice"} {
		policy.Shares.Compute = compute
		if got := labels.Of(inv, policy, "")[labels.ComputeIsolation]; got != want {
			t.Errorf("with shares.compute %q: %q, want %q", compute, got, want)
		}
	}
}
