package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

const gib = 1 << 30

// fleet has two H100, an A100 with two MIG devices, and two GTX 1060.
func fleet() *gpu.Inventory {
	h100 := gpu.GPU{Product: "NVIDIA H100 80GB HBM3", Architecture: "Hopper", ComputeCapability: gpu.ComputeCapability{Major: 9}, MemoryBytes: 80 * gib, MIG: gpu.MIGDisabled}
	a100 := gpu.GPU{Product: "NVIDIA A100-SXM4-40GB", Architecture: "Ampere", ComputeCapability: gpu.ComputeCapability{Major: 8}, MemoryBytes: 40 * gib, MIG: gpu.MIGEnabled}
	gtx := gpu.GPU{Product: "NVIDIA GeForce GTX 1060 6GB", Architecture: "Pascal", ComputeCapability: gpu.ComputeCapability{Major: 6, Minor: 1}, MemoryBytes: 6 * gib}
	inv := &gpu.Inventory{GPUs: []gpu.GPU{h100, h100, a100, gtx, gtx}}
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		g.UUID, g.Index, g.PCIBusID = fmt.Sprintf("GPU-%d", i), i, fmt.Sprintf("0000:%d8:00.0", i)
	}
	for i, profile := range []string{"1g.5gb", "3g.20gb"} {
		inv.GPUs[2].MIGDevices = append(inv.GPUs[2].MIGDevices, gpu.MIGDevice{
			UUID: fmt.Sprintf("MIG-%d", i), Index: i, Profile: profile, MemoryBytes: uint64(5+15*i) * gib, GPUInstance: i + 1})
	}
	return inv
}

func TestSelector(t *testing.T) {
	mixed := fleet()
	for want, selectors := range map[string][]Selector{
		"GPU-0 GPU-1": {
			{Product: "*H100*"}, {Product: "*h100*"}, {Architecture: "hopper"}, {ComputeCapability: ">=9.0"}, {ComputeCapability: "=9"},
			{Memory: ">40Gi"}, {Index: []int{0, 1}}, {UUID: []string{"GPU-0", "GPU-1"}}, {UUID: []string{"gpu-[01]"}},
			{PCI: []string{"0000:08:*", "0000:18:00.0"}}, {Memory: ">=80Gi, <0.5Ti"},
		},
		"GPU-3 GPU-4": {{Memory: "<16Gi"}, {ComputeCapability: "<7"}, {ComputeCapability: ">6.0, <=6.1"}, {Memory: "<= 6144Mi"}},
		"GPU-1":       {{Product: "*H100*", Index: []int{1, 3}}},
		"MIG-0":       {{MIG: "1g.5gb"}, {MIG: "1G.*"}, {UUID: []string{"MIG-0"}}, {MIG: "*", Memory: "<16Gi"}, {UUID: []string{"mig-0"}}},
		"MIG-0 MIG-1": {{MIG: "*"}, {MIG: "*", Index: []int{2}}, {MIG: "*", UUID: []string{"GPU-2"}}, {MIG: "*g.*gb", Product: "*A100*"}},
		"":            {{Product: "H100"}, {MIG: "7g.*"}, {Index: []int{2}}, {UUID: []string{"GPU-2"}}, {Product: "*/*"}},
	} {
		for _, s := range selectors {
			var got []string
			for _, a := range Assign(mixed, Policy{MIG: MIGMixed, Rules: Rules{{Select: s, Name: "example.com/x"}}}) {
				if a.Position == 0 {
					got = append(got, a.Device.ID)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%+v selects %q, want %q", s, got, want)
			}
		}
	}
}

func TestGlob(t *testing.T) {
	for pattern, want := range map[string]bool{"*RTX*": true, "*/RTX 2000": true, "quadro*": true, "RTX": false, "[^q]*": false} {
		if glob(pattern, "Quadro/RTX 2000") != want {
			t.Errorf("%s matches: %t, want %t", pattern, !want, want)
		}
	}
}

func TestAssign(t *testing.T) {
	unchanged := "GPU-0=nvidia.com/gpu GPU-1=nvidia.com/gpu MIG-0=nvidia.com/mig-1g.5gb MIG-1=nvidia.com/mig-3g.20gb GPU-3=nvidia.com/gpu GPU-4=nvidia.com/gpu"
	for name, tc := range map[string]struct {
		rules Rules
		want  string
	}{
		"no rules": {nil, unchanged},
		"the first rule decides": {Rules{
			{Select: Selector{Index: []int{1}}, Exclude: true},
			{Select: Selector{Product: "*H100*"}, Name: "nvidia.com/h100"},
			{Select: Selector{Index: []int{1, 3}}, Name: "example.com/late"},
		}, "GPU-0=nvidia.com/h100 GPU-1=! MIG-0=nvidia.com/mig-1g.5gb MIG-1=nvidia.com/mig-3g.20gb GPU-3=example.com/late GPU-4=nvidia.com/gpu"},
		"excluding a GPU excludes its MIG devices": {Rules{{Select: Selector{Index: []int{2}}, Exclude: true}},
			strings.ReplaceAll(strings.ReplaceAll(unchanged, "nvidia.com/mig-1g.5gb", "!"), "nvidia.com/mig-3g.20gb", "!")},
		"excluding MIG devices": {Rules{{Select: Selector{MIG: "3g.*"}, Exclude: true}}, strings.ReplaceAll(unchanged, "nvidia.com/mig-3g.20gb", "!")},
		"without select": {Rules{{Name: GPUResource, Exclude: true}, {Name: "nvidia.com/mig-1g.5gb", Replicas: 2, Rename: "nvidia.com/mig-1g.5gb.shared"}},
			"GPU-0=! GPU-1=! MIG-0=nvidia.com/mig-1g.5gb.shared MIG-1=nvidia.com/mig-3g.20gb GPU-3=! GPU-4=!"},
		"replicas only": {Rules{{Select: Selector{Memory: "<16Gi"}, Replicas: 4}}, unchanged},
	} {
		var got []string
		for _, a := range Assign(fleet(), Policy{MIG: MIGMixed, Rules: tc.rules}) {
			resource := a.Resource
			if a.Rule.Exclude {
				resource += "!"
			}
			got = append(got, a.Device.ID+"="+resource)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: got %s, want %s", name, strings.Join(got, " "), tc.want)
		}
	}
}

// A device that a claim needs is in the slices whatever its mode, without replicas, unless it is excluded.
func TestAssignRequested(t *testing.T) {
	rules := Rules{
		{Select: Selector{Index: []int{0}}, Name: "example.com/x", Replicas: 2, Limits: LimitMemory, Features: []string{"graphics"}},
		{Select: Selector{Index: []int{1}}, Exclude: true},
		{Select: Selector{Index: []int{3}}, Mode: ModeDRA, Share: ShareReplicas, Replicas: 3},
	}
	resources := Plan(fleet(), testKind, Policy{MIG: MIGMixed, Rules: rules, Requested: []string{"GPU-0", "GPU-1", "GPU-3", "MIG-1"}})
	if got, want := slots(resources), []string{"gpu: GPU-4", "slice: GPU-0 MIG-1 GPU-3", "mig-1g.5gb: MIG-0"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, d := range resources[1].Devices {
		if len(d.CDINames) != 1 || d.Features != "" || d.Resource == "example.com/x" {
			t.Errorf("in the slice, %s has the resource %s and the CDI devices %q", d.ID, d.Resource, d.CDINames)
		}
		if shared := d.ID == "GPU-3"; (d.Sharing != "") != shared || (d.Class != "") != shared || !d.Healthy() {
			t.Errorf("in the slice, %s has the sharing %q, the class %q and the fault %q", d.ID, d.Sharing, d.Class, d.Fault)
		}
	}
}

// Devices of one resource can have different numbers of replicas. MaxDevices bounds their sum.
func TestPlanOfRules(t *testing.T) {
	rules := Rules{
		{Select: Selector{Index: []int{0}}, Name: "example.com/x", Replicas: 2, FailRequestsGreaterThanOne: true},
		{Select: Selector{Index: []int{1}}, Name: "example.com/x"},
		{Select: Selector{Index: []int{3, 4}}, Exclude: true},
	}
	resources := Plan(fleet(), testKind, Policy{MIG: MIGNone, Rules: rules})
	if got, want := slots(resources), []string{"gpu: GPU-2!", "example.com/x: GPU-0::0 GPU-0::1 GPU-1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for ids, ok := range map[string]bool{"GPU-0::0": true, "GPU-1": true, "GPU-0::0 GPU-0::1": false, "GPU-0::0 GPU-1": false} {
		_, err := resources[1].Lookup(strings.Fields(ids))
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "failRequestsGreaterThanOne") {
			t.Errorf("%s: error %v, want one: %t", ids, err, !ok)
		}
	}
	rules[0].Replicas = MaxDevices
	if d := Plan(fleet(), testKind, Policy{MIG: MIGNone, Rules: rules})[1].Devices; d[0].Fault.Code != gpu.FaultConfig || !d[1].Healthy() {
		t.Errorf("over the limit: got devices %+v, want a fault of the shared one only", d)
	}
}

// nvidia.com/gpu stays in the plan if rules remove all of its devices.
func TestPlanKeepsTheDefaultResource(t *testing.T) {
	got := slots(Plan(fleet(), testKind, Policy{MIG: MIGNone, Rules: Rules{{Select: Selector{Product: "*"}, Name: "example.com/x"}}}))
	if want := []string{"gpu:", "example.com/x: GPU-0 GPU-1 GPU-2! GPU-3 GPU-4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Devices that rules remove from nvidia.com/gpu do not count as partitioned differently.
func TestNotUniformIgnoresRemovedDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		rules   Rules
		uniform bool
	}{
		"no rules":             {nil, false},
		"whole GPUs excluded":  {Rules{{Select: Selector{Product: "*"}, Exclude: true}}, true},
		"whole GPUs elsewhere": {Rules{{Select: Selector{Product: "*"}, Name: "example.com/x"}}, false}, // 1g.5gb and 3g.20gb differ
		"one profile left":     {Rules{{Select: Selector{Product: "*"}, Name: "example.com/x"}, {Select: Selector{MIG: "3g.*"}, Name: "example.com/y"}}, true},
		"partitioned excluded": {Rules{{Select: Selector{Index: []int{2}}, Exclude: true}}, true},
		"MIG devices excluded": {Rules{{Select: Selector{MIG: "*"}, Exclude: true}}, true},
		"MIG devices shared":   {Rules{{Name: GPUResource, Replicas: 2}}, false},
	} {
		if fault := NotUniform(fleet(), tc.rules); fault.None() != tc.uniform {
			t.Errorf("%s: got %+v, want uniform: %t", name, fault, tc.uniform)
		}
	}
}
