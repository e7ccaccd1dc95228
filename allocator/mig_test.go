package allocator

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// partitioned returns a node with a GPU for each list of profiles, four per NUMA node. A GPU with profiles is in MIG
// mode; the profile "" adds no MIG device. The MIG devices of GPU-2 are MIG-2.0, MIG-2.1 and so on.
func partitioned(profiles ...[]string) *gpu.Inventory {
	inv := &gpu.Inventory{}
	for i, of := range profiles {
		g := gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, NUMANode: i / 4, MIG: gpu.MIGDisabled}
		for j, profile := range of {
			g.MIG = gpu.MIGEnabled
			if profile != "" {
				g.MIGDevices = append(g.MIGDevices, gpu.MIGDevice{
					UUID: fmt.Sprintf("MIG-%d.%d", i, j), Index: j, Profile: profile, GPUInstance: 7 + j})
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

func times(n int, profile string) []string { return slices.Repeat([]string{profile}, n) }

// listed formats resources as "resource: device device!", where ! means unhealthy.
func listed(resources []*Resource) []string {
	var lines []string
	for _, r := range resources {
		line := strings.TrimPrefix(r.Name, "nvidia.com/") + ":"
		for _, d := range r.Devices {
			line += " " + d.ID
			if !d.Healthy() {
				line += "!"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func TestPlanByStrategy(t *testing.T) {
	alike := partitioned(times(2, "3g.20gb"), times(2, "3g.20gb"))
	mixed := partitioned([]string{"1g.5gb+me", "1c.3g.20gb"}, nil, []string{"1g.5gb"}, []string{""})
	for _, tc := range []struct {
		name     string
		inv      *gpu.Inventory
		strategy MIGStrategy
		want     []string
		message  string // part of the fault of unhealthy devices
	}{
		{"none, no MIG", partitioned(nil, nil), MIGNone, []string{"gpu: GPU-0 GPU-1"}, ""},
		{"none", mixed, MIGNone, []string{"gpu: GPU-0! GPU-1 GPU-2! GPU-3!"}, "mig.strategy"},
		{"single, no MIG", partitioned(nil, nil), MIGSingle, []string{"gpu: GPU-0 GPU-1"}, ""},
		{"single", alike, MIGSingle, []string{"gpu: MIG-0.0 MIG-0.1 MIG-1.0 MIG-1.1"}, ""},
		{"single, one GPU without MIG devices", partitioned(times(1, "7g.40gb"), []string{""}), MIGSingle, []string{"gpu: MIG-0.0"}, ""},
		{"single, not all in MIG mode", partitioned(times(1, "7g.40gb"), nil), MIGSingle, []string{"gpu: MIG-0.0! GPU-1!"}, "only some GPUs"},
		{"single, two profiles", partitioned(times(1, "7g.40gb"), times(1, "1g.5gb")), MIGSingle, []string{"gpu: MIG-0.0! MIG-1.0!"}, "7g.40gb, 1g.5gb"},
		{"mixed", mixed, MIGMixed, []string{"gpu: GPU-1", "mig-1g.5gb.me: MIG-0.0", "mig-1c.3g.20gb: MIG-0.1", "mig-1g.5gb: MIG-2.0"}, ""},
		{"mixed, all GPUs in MIG mode", alike, MIGMixed, []string{"gpu:", "mig-3g.20gb: MIG-0.0 MIG-0.1 MIG-1.0 MIG-1.1"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resources := Plan(tc.inv, testKind, Policy{MIG: tc.strategy})
			if got := listed(resources); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			for _, r := range resources {
				for _, d := range r.Devices {
					if !d.Fault.None() && (tc.message == "" || !strings.Contains(d.Fault.Message+d.Fault.Remedy, tc.message) || d.Fault.Code != gpu.FaultConfig) {
						t.Errorf("%s: %q, want %q", d.ID, d.Fault, tc.message)
					}
				}
			}
		})
	}
}

func TestSingleIgnoresFaultyDevices(t *testing.T) {
	inv := partitioned(times(1, "7g.40gb"), nil, []string{"7g.40gb", "1g.5gb", "7g.40gb"})
	inv.GPUs[1].Fault = fault("lost")
	inv.GPUs[2].MIGDevices[1].Fault = gpu.Gone()
	inv.GPUs[2].MIGDevices[2].Fault, inv.GPUs[2].MIGDevices[2].Profile = fault("reading the attributes: Unknown Error"), ""
	want := []string{"gpu: MIG-0.0 GPU-1! MIG-2.0 MIG-2.2!"}
	if got := listed(Plan(inv, testKind, Policy{MIG: MIGSingle})); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlanMIGDevice(t *testing.T) {
	inv := partitioned(nil, nil, nil, nil, times(1, "1g.5gb"))
	got := Plan(inv, testKind, Policy{MIG: MIGMixed})[1].Devices
	want := []Device{{ID: "MIG-4.0", CDINames: []string{testKind + "=MIG-4.0"}, GPU: "GPU-4", Resource: "nvidia.com/mig-1g.5gb", Index: "4:0", NUMANode: 1, instances: instances{7, 0}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// MIG devices are packed onto few GPUs, so that the others stay unused.
func TestPreferPacksMIGDevices(t *testing.T) {
	inv := partitioned(times(3, "1g.5gb"), times(4, "1g.5gb"), times(2, "1g.5gb"))
	for i, g := range inv.GPUs { // strong links between GPUs must not spread the request
		for _, other := range inv.GPUs {
			if other.UUID != g.UUID {
				inv.GPUs[i].Links = append(inv.GPUs[i].Links, gpu.Link{Peer: other.UUID, NVLinks: 36, PCIe: gpu.SameBoard})
			}
		}
	}
	r := Plan(inv, testKind, Policy{MIG: MIGMixed})[1]
	var all []string
	for _, d := range r.Devices {
		all = append(all, d.ID)
	}
	for _, tc := range []struct {
		name      string
		available []string
		size      int
		want      []string
	}{
		{"one from the GPU with the fewest left", all, 1, []string{"MIG-2.0"}},
		{"two from the GPU with the fewest left", all, 2, []string{"MIG-2.0", "MIG-2.1"}},
		{"four of one GPU", all, 4, []string{"MIG-1.0", "MIG-1.1", "MIG-1.2", "MIG-1.3"}},
		{"two from the only GPU with two", []string{"MIG-0.0", "MIG-1.0", "MIG-2.0", "MIG-2.1"}, 2, []string{"MIG-2.0", "MIG-2.1"}},
		{"the last one of a GPU", []string{"MIG-0.0", "MIG-0.1", "MIG-1.3"}, 1, []string{"MIG-1.3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, err := r.Prefer(tc.available, nil, tc.size); err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("Prefer = %v, %v; want %v", got, err, tc.want)
			}
		})
	}
}
