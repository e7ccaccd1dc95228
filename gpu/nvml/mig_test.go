package nvml

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestProfile(t *testing.T) {
	const a100, h100 = 40960 << 20, 81559 << 20 // bytes
	for _, tc := range []struct {
		name          string
		slices, of    uint32
		memory, total uint64 // MiB, bytes
		want          string
	}{
		{"NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", 1, 1, 4864, a100, "1g.5gb+me"},
		{"NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 1, 3, 20096, a100, "1c.3g.20gb"},
		{"NVIDIA A100-SXM4-40GB", 1, 1, 4864, a100, "1g.5gb"},
		{"NVIDIA A100-SXM4-40GB", 1, 3, 20096, a100, "1c.3g.20gb"},
		{"NVIDIA A100-SXM4-40GB MIG ", 7, 7, 40192, a100, "7g.40gb"},
		{"", 1, 1, 9984, h100, "1g.10gb"},
		{"", 3, 3, 40448, h100, "3g.40gb"},
		{"", 1, 1, 9984, 0, ""},
	} {
		size := nvml.DeviceAttributes{GpuInstanceSliceCount: tc.of, ComputeInstanceSliceCount: tc.slices, MemorySizeMB: tc.memory}
		if got := profile(tc.name, size, tc.total); got != tc.want {
			t.Errorf("%q with %d of %d slices and %d MiB: %s, want %s", tc.name, tc.slices, tc.of, tc.memory, got, tc.want)
		}
	}
}

func TestAffectedMIGDevices(t *testing.T) {
	g := gpu.GPU{MIGDevices: []gpu.MIGDevice{
		{UUID: "MIG-a", GPUInstance: 1, ComputeInstance: 0},
		{UUID: "MIG-b", GPUInstance: 1, ComputeInstance: 1},
		{UUID: "MIG-c", GPUInstance: 2, ComputeInstance: 0},
	}}
	for _, tc := range []struct {
		name   string
		gi, ci uint32
		want   []string
	}{
		{"whole GPU", noInstance, noInstance, nil},
		{"GPU instance", 1, noInstance, []string{"MIG-a", "MIG-b"}},
		{"compute instance", 1, 1, []string{"MIG-b"}},
		{"unknown instances", 9, 0, nil},
	} {
		if got := affectedMIGDevices(g, tc.gi, tc.ci); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
