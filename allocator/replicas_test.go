package allocator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func replicas(n int) Rules { return Rules{{Name: GPUResource, Replicas: n}} }

// shared returns the plan of a topology with n replicas of each GPU.
func shared(topology string, n int) *Resource {
	return Plan(topologies[topology](), testKind, Policy{MIG: MIGNone, Rules: replicas(n)})[0]
}

// slots formats resources as "resource: replica replica!", where ! means unhealthy.
func slots(resources []*Resource) []string {
	var lines []string
	for _, r := range resources {
		line := strings.TrimPrefix(r.Name, "nvidia.com/") + ":"
		for _, s := range r.slots {
			line += " " + s.id
			if !r.Devices[s.device].Healthy() {
				line += "!"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// ids returns replica IDs: "3.1" is GPU-3::1.
func ids(of string) (ids []string) {
	for _, name := range strings.Fields(of) {
		ids = append(ids, "GPU-"+strings.Replace(name, ".", replicaMark, 1))
	}
	return ids
}

func TestPlanReplicas(t *testing.T) {
	inv := partitioned(nil, nil, times(1, "1g.5gb"))
	inv.GPUs[1].Fault = fault("lost")
	rules := Rules{
		{Name: "nvidia.com/mig-1g.5gb", Replicas: 3}, {Name: GPUResource, Replicas: 2}, {Name: "nvidia.com/mig-7g.40gb", Replicas: 9}}
	resources := Plan(inv, testKind, Policy{MIG: MIGMixed, Rules: rules})
	want := []string{"gpu: GPU-0::0 GPU-0::1 GPU-1::0! GPU-1::1!", "mig-1g.5gb: MIG-2.0::0 MIG-2.0::1 MIG-2.0::2"}
	if got := slots(resources); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if d := resources[0].Devices[0]; d.ID != "GPU-0" || d.CDINames[0] != testKind+"=GPU-0" {
		t.Errorf("device of the replicas is %+v", d)
	}
}

func TestPlanRename(t *testing.T) {
	rules := Rules{{Name: GPUResource, Replicas: 2, Rename: GPUResource + SharedSuffix},
		{Name: "nvidia.com/mig-1g.5gb", Replicas: 2, Rename: "nvidia.com/mig-1g.5gb.shared"}}
	inv := partitioned(nil, times(1, "1g.5gb"))
	renamed := Plan(inv, testKind, Policy{MIG: MIGMixed, Rules: rules})
	want := []string{"gpu:", "gpu.shared: GPU-0::0 GPU-0::1", "mig-1g.5gb.shared: MIG-1.0::0 MIG-1.0::1"}
	if got := slots(renamed); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTooManyReplicas(t *testing.T) {
	most := MaxDevices / 8
	for n, valid := range map[int]bool{most: true, most + 1: false} {
		r := shared("8 on an NVSwitch", n)
		if got := len(r.slots); valid != (got == 8*n) || valid != r.Devices[0].Fault.None() {
			t.Errorf("%d replicas: %d device IDs, fault %q", n, got, r.Devices[0].Fault)
		}
		if fault := r.Devices[7].Fault; !valid && (fault.Code != gpu.FaultConfig || !strings.Contains(fault.Message, fmt.Sprint(8*n))) {
			t.Errorf("got fault %q", fault)
		}
	}
}

func TestLookupReplicas(t *testing.T) {
	r := shared("4 on PCIe, 2 NUMA nodes", 4)
	devices, err := r.Lookup(ids("2.3 0.1 2.0"))
	if err != nil || !slices.Equal(devices, []int{0, 2}) {
		t.Errorf("Lookup = %v, %v; want 0 and 2", devices, err)
	}
	for _, tc := range []struct {
		ids     []string
		is      error
		message string
	}{
		{ids("1.1 1.0 1.1"), ErrMalformed, "GPU-1::1"},
		{ids("1.4"), ErrUnknown, `"GPU-1::4" is not one of the 16`},
		{[]string{"GPU-1"}, ErrUnknown, `"GPU-1"`},
	} {
		if _, err := r.Lookup(tc.ids); !errors.Is(err, tc.is) || strings.Count(err.Error(), tc.message) != 1 {
			t.Errorf("Lookup of %v: %v, want %q once", tc.ids, err, tc.message)
		}
	}
}

func TestPreferSpreadsReplicas(t *testing.T) {
	everything := "0.0 0.1 0.2 0.3 1.0 1.1 1.2 1.3 2.0 2.1 2.2 2.3 3.0 3.1 3.2 3.3"
	for _, tc := range []struct {
		name      string
		available string
		required  string
		size      int
		want      string
	}{
		{"one", everything, "", 1, "0.0"},
		{"two of one NUMA node", everything, "", 2, "0.0 1.0"},
		{"one of each GPU", everything, "", 4, "0.0 1.0 2.0 3.0"},
		{"a second of the first GPU", everything, "", 5, "0.0 0.1 1.0 2.0 3.0"},
		{"from the least shared", "0.1 0.2 0.3 1.1 1.2 1.3 2.0 2.1 2.2 2.3 3.1", "", 1, "2.0"},
		{"the least shared before the nearest", "0.1 1.0 1.1 1.2 2.2 2.3 3.0 3.1 3.2", "", 2, "1.0 3.0"},
		{"the least shared and the nearest to it", "0.2 0.3 1.2 1.3 2.0 2.1 2.2 2.3 3.2 3.3", "", 2, "2.0 3.2"},
		{"another GPU before a second of the least shared", "0.3 1.0 1.1 1.2 1.3", "", 2, "0.3 1.0"},
		{"the rest of one GPU", "1.1 1.3", "", 2, "1.1 1.3"},
		{"the neighbor of the required one", everything, "2.1", 2, "2.1 3.0"},
		{"all on one GPU as required", everything, "2.1 2.2 2.3", 3, "2.1 2.2 2.3"},
		{"not on the GPU of the required ones", everything, "2.1 2.2", 5, "0.0 1.0 2.1 2.2 3.0"},
		{"as many on the neighbor as required", everything, "2.1 2.2", 6, "0.0 1.0 2.1 2.2 3.0 3.1"},
		{"all", everything, "", 16, everything},
		{"repeated, and unknown", "1.1 1.1 9.0 1.4 3.3 3.3", "", 2, "1.1 3.3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := shared("4 on PCIe, 2 NUMA nodes", 4)
			available := ids(tc.available)
			for range 2 { // in both orders
				got, err := r.Prefer(available, ids(tc.required), tc.size)
				if err != nil || !slices.Equal(got, ids(tc.want)) {
					t.Errorf("Prefer = %v, %v; want %s", got, err, tc.want)
				}
				slices.Reverse(available)
			}
		})
	}
}

// Devices of one resource may have different numbers of replicas.
func TestPreferComparesReplicasInUse(t *testing.T) {
	inv := topologies["4 on PCIe, 2 NUMA nodes"]()
	rules := Rules{{Select: Selector{Index: []int{0}}, Name: GPUResource, Replicas: 4}, {Name: GPUResource, Replicas: 2}}
	r := Plan(inv, testKind, Policy{MIG: MIGNone, Rules: rules})[0]
	for available, want := range map[string]string{
		"0.2 0.3 1.0 1.1": "1.0", // idle
		"0.1 0.2 0.3 1.1": "0.1", // one in use on each GPU: the first GPU
		"0.1 0.2 0.3 1.0": "0.1",
		"0.3 1.0":         "1.0",
	} {
		if got, err := r.Prefer(ids(available), nil, 1); err != nil || !slices.Equal(got, ids(want)) {
			t.Errorf("of %s: Prefer = %v, %v; want %s", available, got, err, want)
		}
	}
}

func TestPreferSkipsUnhealthyReplicas(t *testing.T) {
	r := shared("4 on PCIe, 2 NUMA nodes", 2)
	r.Devices[1].Fault = fault("ECC")
	if got, err := r.Prefer(ids("0.0 0.1 1.0 1.1 2.1 3.1"), nil, 3); err != nil || !slices.Equal(got, ids("0.0 2.1 3.1")) {
		t.Errorf("Prefer = %v, %v", got, err)
	}
	if _, err := r.Prefer(ids("0.0 1.0 1.1"), nil, 2); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("two requested with one healthy: %v", err)
	}
}

func BenchmarkPreferReplicas(b *testing.B) {
	r := shared("8 on an NVSwitch", 10)
	var available []string
	for _, d := range r.Devices {
		available = append(available, d.Replicas...)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Prefer(available, nil, 4); err != nil {
			b.Fatal(err)
		}
	}
}
