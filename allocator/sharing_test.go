package allocator

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// The capacity is the memory that claims can get. With a ceiling it excludes the memory that MPS uses.
func TestSharedPlan(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rule   Rule
		shares Shares
		memory uint64
		want   Amount
		fault  string // part of its message; empty if there is none
	}{
		{"memory", Rule{Share: ShareMemory, Level: LevelAny}, DefaultShares(), 80<<30 + 1, Amount{Cores: 100, Memory: 80 << 30}, ""},
		{"limits", Rule{Share: ShareMemory}, DefaultShares(), 80 << 30, Amount{Cores: 100, Memory: 80 << 30}, "the driver does not report whether it can be"},
		{"old driver", Rule{Share: ShareMemory}, DefaultShares(), 80 << 30, Amount{Cores: 100, Memory: 80 << 30}, "install a newer one"},
		{"supported", Rule{Share: ShareMemory}, DefaultShares(), 80 << 30, Amount{Cores: 100, Memory: 80 << 30}, ""},
		{"scaled", Rule{Share: ShareMemory, Level: LevelAny}, Shares{MemoryScaling: 0.5, Reserve: "1Gi"}, 9 << 30, Amount{Cores: 100, Memory: 4 << 30}, ""},
		{"ceiling", Rule{Share: ShareMemory}, Shares{MemoryScaling: 1, Compute: ComputeCeiling}, 80 << 30, Amount{Cores: 100, Memory: 79 << 30}, ""},
		{"scaled ceiling", Rule{Share: ShareMemory}, Shares{MemoryScaling: 0.5, Reserve: "1Gi", Compute: ComputeCeiling}, 10 << 30, Amount{Cores: 100, Memory: 4 << 30}, ""},
		{"ceiling not enforceable", Rule{Share: ShareMemory, Level: LevelAny}, Shares{MemoryScaling: 1, Compute: ComputeCeiling}, 80 << 30, Amount{Cores: 100, Memory: 80 << 30}, ""},
		{"too little with MPS", Rule{Share: ShareMemory}, Shares{MemoryScaling: 1, Compute: ComputeCeiling}, 1<<30 + 256<<20, Amount{}, "256 MiB are offered"},
		{"too little", Rule{Share: ShareMemory, Level: LevelAny}, Shares{MemoryScaling: 1, Reserve: "8Gi"}, 8<<30 + 256<<20, Amount{}, "256 MiB are offered"},
		{"reserved more", Rule{Share: ShareMemory, Level: LevelAny}, Shares{MemoryScaling: 1, Reserve: "8Gi"}, 4 << 30, Amount{}, "0 MiB are offered"},
		{"size unknown", Rule{Share: ShareMemory, Level: LevelAny}, DefaultShares(), 0, Amount{}, "does not report its size"},
		{"replicas", Rule{Share: ShareReplicas, Replicas: 4}, DefaultShares(), 0, Amount{Replicas: 4}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.rule.Name = GPUResource
			limits := map[string]gpu.MemoryLimits{"supported": gpu.MemoryLimitsSupported, "old driver": gpu.MemoryLimitsOldDriver,
				"ceiling": gpu.MemoryLimitsSupported, "scaled ceiling": gpu.MemoryLimitsSupported}[tc.name]
			inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: gpu0, MemoryBytes: tc.memory, MIG: gpu.MIGDisabled, MemoryLimits: limits}}}
			devices := 0
			for _, r := range Plan(inv, testKind, Policy{Mode: ModeDRA, Rules: Rules{tc.rule}, Shares: tc.shares}) {
				for _, d := range r.Devices {
					devices++
					if !r.Sliced() || d.Shared() || d.Capacity != tc.want || d.Sharing != tc.rule.Share {
						t.Errorf("%+v in %s", d, r.Name)
					}
					if (tc.fault == "") != d.Fault.None() || !strings.Contains(d.Fault.Message, tc.fault) {
						t.Errorf("fault %q, want %q", d.Fault.Message, tc.fault)
					}
				}
			}
			if devices != 1 {
				t.Errorf("%d devices, want the GPU", devices)
			}
		})
	}
}
