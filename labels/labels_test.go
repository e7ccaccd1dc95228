package labels_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/labels"
)

func h100s(n int) *gpu.Inventory {
	inv := &gpu.Inventory{Driver: gpu.Driver{Version: "580.95.05", CUDA: gpu.CUDAVersion{Major: 13, Minor: 0}}}
	for range n {
		inv.GPUs = append(inv.GPUs, gpu.GPU{
			Product: "NVIDIA H100 80GB HBM3", MemoryBytes: 81559 << 20, PCIClass: "0x030200",
			ComputeCapability: gpu.ComputeCapability{Major: 9, Minor: 0}, MIG: gpu.MIGDisabled,
		})
	}
	return inv
}

// docs/labels.md lists the labels of a node with eight H100 GPUs.
func TestDocumentedLabels(t *testing.T) {
	text, err := os.ReadFile("../docs/labels.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.Contains(cells[1], "/") && !strings.Contains(cells[1], ",") {
			want[strings.Trim(cells[1], " `")] = strings.Trim(cells[2], " `")
		}
	}
	got := labels.Of(h100s(8), allocator.Policy{MIG: allocator.MIGNone}, "DGXH100\n")
	if !maps.Equal(got, want) {
		t.Errorf("got\n%s\ndocumented\n%s", labels.File(got), labels.File(want))
	}
}

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*gpu.Inventory)
		want   map[string]string
	}{
		"no GPUs":          {func(inv *gpu.Inventory) { inv.GPUs = nil }, nil},
		"all GPUs gone":    {func(inv *gpu.Inventory) { inv.GPUs[0].Fault, inv.GPUs[1].Fault = gpu.Gone(), gpu.Gone() }, nil},
		"one GPU gone":     {func(inv *gpu.Inventory) { inv.GPUs[0].Fault = gpu.Gone() }, map[string]string{"gpu.count": "1"}},
		"one GPU faulty":   {func(inv *gpu.Inventory) { inv.GPUs[0].Fault = fault("XID 79") }, map[string]string{"gpu.count": "2"}},
		"two products":     {func(inv *gpu.Inventory) { inv.GPUs[1].Product = "Tesla T4" }, map[string]string{"gpu.count": "1", "gpu.product": "NVIDIA-H100-80GB-HBM3"}},
		"display":          {func(inv *gpu.Inventory) { inv.GPUs[0].PCIClass = "0x030000" }, map[string]string{"gpu.mode": "graphics"}},
		"no sysfs":         {func(inv *gpu.Inventory) { inv.GPUs[0].PCIClass = "" }, map[string]string{"gpu.mode": "unknown"}},
		"short version":    {func(inv *gpu.Inventory) { inv.Driver.Version = "580.95" }, map[string]string{"cuda.driver-version.revision": "", "cuda.driver.rev": ""}},
		"Ada":              {capability(8, 9), map[string]string{"gpu.family": "ada-lovelace"}},
		"Turing":           {capability(7, 5), map[string]string{"gpu.family": "turing"}},
		"Blackwell":        {capability(12, 0), map[string]string{"gpu.family": "blackwell"}},
		"Thor":             {capability(11, 0), map[string]string{"gpu.family": "blackwell"}},
		"future GPU":       {capability(99, 0), map[string]string{"gpu.family": "undefined", "gpu.compute.major": "99"}},
		"one supports MIG": {func(inv *gpu.Inventory) { inv.GPUs[0].MIG = gpu.MIGUnsupported }, map[string]string{"mig.capable": "true"}},
		"vGPU": {func(inv *gpu.Inventory) {
			inv.GPUs[1].VGPU = &gpu.VGPU{HostDriver: "550.127.06", HostBranch: "r550_00"}
		}, map[string]string{
			"vgpu.present": "true", "vgpu.host-driver-version": "550.127.06", "vgpu.host-driver-branch": "r550_00"}},
		"fabric": {func(inv *gpu.Inventory) { inv.GPUs[1].Clique = "c.1" }, map[string]string{"gpu.clique": "c.1"}},
		"invalid characters": {func(inv *gpu.Inventory) { inv.GPUs[0].Product = " (R) X/Y  Z_" + strings.Repeat("long", 20) }, map[string]string{
			"gpu.product": "R-XY-Z_" + strings.Repeat("long", 14)}},
	} {
		inv := h100s(2)
		tc.change(inv)
		got := labels.Of(inv, allocator.Policy{MIG: allocator.MIGNone}, "")
		if (len(got) == 0) != (tc.want == nil) {
			t.Errorf("%s: %v", name, got)
		}
		for label, want := range tc.want {
			if v, found := got["nvidia.com/"+label]; v != want || !found {
				t.Errorf("%s: %s is %q, want %q", name, label, v, want)
			}
		}
	}
}

// On a Jetson without NVML the driver version is the release of Jetson Linux, which is not comparable.
func TestNoDriverLabelsWithoutCUDAVersion(t *testing.T) {
	inv := h100s(1)
	inv.Driver = gpu.Driver{Version: "35.4.1"}
	for label := range labels.Of(inv, allocator.Policy{MIG: allocator.MIGNone}, "") {
		if strings.HasPrefix(label, "nvidia.com/cuda.") {
			t.Errorf("unexpected label %s", label)
		}
	}
}

// The label states that pods can use NVLink between nodes, so it must not be wrong.
func TestNoCliqueLabelIfCliquesDiffer(t *testing.T) {
	inv := h100s(2)
	inv.GPUs[0].Clique, inv.GPUs[1].Clique = "c.1", "c.2"
	if clique, found := labels.Of(inv, allocator.Policy{MIG: allocator.MIGNone}, "")["nvidia.com/gpu.clique"]; found {
		t.Errorf("got the clique %s, want none", clique)
	}
}

func capability(major, minor int) func(*gpu.Inventory) {
	return func(inv *gpu.Inventory) {
		inv.GPUs[0].ComputeCapability = gpu.ComputeCapability{Major: major, Minor: minor}
	}
}

// mig partitions the GPUs into the given profiles.
func mig(inv *gpu.Inventory, byGPU ...[]string) *gpu.Inventory {
	for i, profiles := range byGPU {
		inv.GPUs[i].MIG = gpu.MIGEnabled
		for _, p := range profiles {
			inv.GPUs[i].MIGDevices = append(inv.GPUs[i].MIGDevices, gpu.MIGDevice{Profile: p, MemoryBytes: 9728 << 20,
				Multiprocessors: 16, GPUSlices: 1, ComputeSlices: 1, Engines: gpu.Engines{Copy: 1, Decoder: 2, Encoder: 3, JPEG: 4, OFA: 5}})
		}
	}
	return inv
}

func TestMIG(t *testing.T) {
	one := []string{"1g.10gb", "1g.10gb"}
	whole := map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.count": "2", "gpu.memory": "81559"}
	for name, tc := range map[string]struct {
		inv      *gpu.Inventory
		strategy allocator.MIGStrategy
		want     map[string]string
		none     string // prefix of labels that must not be set
	}{
		"none":                 {mig(h100s(2), one, one), allocator.MIGNone, with(whole, "gpu.replicas", "0"), "mig.strategy"},
		"mixed":                {mig(h100s(2), one, []string{"1g.10gb", "1g.10gb+me"}), allocator.MIGMixed, with(whole, "mig.strategy", "mixed", "gpu.replicas", "0", "mig-1g.10gb.count", "3", "mig-1g.10gb.me.count", "1", "mig-1g.10gb.me.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gbme"), "gpu.slices"},
		"mixed, one GPU":       {mig(h100s(2), one), allocator.MIGMixed, with(whole, "gpu.replicas", "1", "mig-1g.10gb.count", "2"), "gpu.slices"},
		"mixed, no MIG":        {h100s(2), allocator.MIGMixed, with(whole, "mig.strategy", "mixed", "gpu.replicas", "1"), "mig-"},
		"single":               {mig(h100s(2), one, one), allocator.MIGSingle, map[string]string{"mig.strategy": "single", "gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "gpu.count": "4", "gpu.replicas": "1", "gpu.memory": "9728", "gpu.multiprocessors": "16", "gpu.slices.gi": "1", "gpu.slices.ci": "1", "gpu.engines.copy": "1", "gpu.engines.decoder": "2", "gpu.engines.encoder": "3", "gpu.engines.jpeg": "4", "gpu.engines.ofa": "5", "gpu.family": "hopper"}, "mig-"},
		"single, no MIG":       {h100s(2), allocator.MIGSingle, with(whole, "mig.strategy", "single"), "gpu.slices"},
		"single, one GPU":      {mig(h100s(2), one), allocator.MIGSingle, invalid, "gpu.slices"},
		"single, empty":        {mig(h100s(2), nil, nil), allocator.MIGSingle, invalid, "gpu.slices"},
		"single, two profiles": {mig(h100s(2), one, []string{"2g.20gb"}), allocator.MIGSingle, invalid, "gpu.slices"},
	} {
		got := labels.Of(tc.inv, allocator.Policy{MIG: tc.strategy}, "")
		for label, want := range tc.want {
			if v := got["nvidia.com/"+label]; v != want {
				t.Errorf("%s: %s is %q, want %q", name, label, v, want)
			}
		}
		for label := range got {
			if strings.HasPrefix(label, "nvidia.com/"+tc.none) {
				t.Errorf("%s: unexpected label %s", name, label)
			}
		}
	}
}

// With the strategy single, the labels match the advertised devices: a faulty GPU, however it is partitioned, neither
// makes the product invalid nor reduces the count.
func TestSingleMatchesAllocator(t *testing.T) {
	one := []string{"1g.10gb", "1g.10gb"}
	for name, tc := range map[string]struct {
		inv     *gpu.Inventory
		faulty  []int
		rules   allocator.Rules
		count   string // of MIG devices; empty if whole GPUs are advertised
		healthy int    // devices that the allocator advertises
	}{
		"one GPU faulty":                      {mig(h100s(2), one, one), []int{1}, nil, "4", 2},
		"one GPU faulty without MIG devices":  {mig(h100s(2), one), []int{1}, nil, "2", 2},
		"one GPU faulty with another profile": {mig(h100s(2), one, []string{"2g.20gb"}), []int{1}, nil, "2", 2},
		"first GPU faulty":                    {mig(h100s(2), []string{"2g.20gb"}, one), []int{0}, nil, "2", 2},
		"one GPU not partitioned":             {mig(h100s(2), one, nil), nil, nil, "2", 2},
		"all GPUs faulty":                     {mig(h100s(2), one, one), []int{0, 1}, nil, "4", 0},
		"only GPU in MIG mode faulty":         {mig(h100s(2), one), []int{0}, nil, "", 1},
		"MIG devices excluded":                {mig(h100s(2), one), nil, allocator.Rules{{Select: allocator.Selector{MIG: "*"}, Exclude: true}}, "", 1},
		"MIG devices as another resource":     {mig(h100s(2), one), nil, allocator.Rules{{Select: allocator.Selector{MIG: "*"}, Name: "example.com/x"}}, "", 1},
	} {
		for i := range tc.inv.GPUs {
			g := &tc.inv.GPUs[i]
			g.UUID = strconv.Itoa(i)
			if slices.Contains(tc.faulty, i) {
				g.Fault = fault("XID 79")
			}
			for j := range g.MIGDevices {
				g.MIGDevices[j].UUID, g.MIGDevices[j].Fault = fmt.Sprintf("%d:%d", i, j), g.Fault
			}
		}
		got := labels.Of(tc.inv, allocator.Policy{MIG: allocator.MIGSingle, Rules: tc.rules}, "")
		product, count := "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", tc.count
		if tc.count == "" {
			product, count = "NVIDIA-H100-80GB-HBM3", "2"
		}
		if got["nvidia.com/gpu.product"] != product || got["nvidia.com/gpu.count"] != count {
			t.Errorf("%s: %s × %s, want %s × %s", name, got["nvidia.com/gpu.count"], got["nvidia.com/gpu.product"], count, product)
		}
		healthy := 0
		for _, d := range allocator.Plan(tc.inv, "example.com/gpu", allocator.Policy{MIG: allocator.MIGSingle, Rules: tc.rules})[0].Devices {
			if d.Fault.None() {
				healthy++
			}
		}
		if healthy != tc.healthy {
			t.Errorf("%s: the allocator advertises %d healthy devices, want %d", name, healthy, tc.healthy)
		}
	}
}

var invalid = map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID", "gpu.count": "0", "gpu.replicas": "0", "gpu.memory": "0"}

// with returns a copy of labels with others added.
func with(labels map[string]string, others ...string) map[string]string {
	all := maps.Clone(labels)
	for i := 0; i < len(others); i += 2 {
		all[others[i]] = others[i+1]
	}
	return all
}

// The product of a shared resource has a suffix unless the resource is renamed.
func TestShared(t *testing.T) {
	rules := allocator.Rules{{Name: "nvidia.com/gpu", Replicas: 4}, {Name: "nvidia.com/mig-1g.10gb", Replicas: 2},
		{Name: "nvidia.com/mig-3g.40gb", Replicas: 2, Rename: "nvidia.com/mig-3g.40gb.shared"}}
	one := []string{"1g.10gb"}
	for name, tc := range map[string]struct {
		inv      *gpu.Inventory
		strategy allocator.MIGStrategy
		want     map[string]string
	}{
		"GPUs": {h100s(2), allocator.MIGNone, map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "gpu.count": "2",
			"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing", "gpu.memory": "81559"}},
		"mixed": {mig(h100s(2), one), allocator.MIGMixed, map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "gpu.replicas": "4",
			"mig-1g.10gb.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", "mig-1g.10gb.replicas": "2", "mig-1g.10gb.sharing-strategy": "time-slicing"}},
		"mixed, no whole GPUs": {mig(h100s(1), one), allocator.MIGMixed, map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.replicas": "0",
			"gpu.sharing-strategy": "none", "mig-1g.10gb.replicas": "2"}},
		"single":               {mig(h100s(1), one), allocator.MIGSingle, map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", "gpu.replicas": "4"}},
		"single, two profiles": {mig(h100s(2), one, []string{"2g.20gb"}), allocator.MIGSingle, with(invalid, "gpu.sharing-strategy", "none")},
		"renamed": {mig(h100s(1), []string{"3g.40gb"}), allocator.MIGMixed, map[string]string{"mig-3g.40gb.product": "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb",
			"mig-3g.40gb.replicas": "2", "mig-3g.40gb.sharing-strategy": "time-slicing"}},
		"another profile": {mig(h100s(1), []string{"2g.20gb"}), allocator.MIGMixed, map[string]string{"mig-2g.20gb.replicas": "1", "mig-2g.20gb.sharing-strategy": "none"}},
	} {
		got := labels.Of(tc.inv, allocator.Policy{MIG: tc.strategy, Rules: rules}, "")
		for label, want := range tc.want {
			if v := got["nvidia.com/"+label]; v != want {
				t.Errorf("%s: %s is %q, want %q", name, label, v, want)
			}
		}
	}
}

// Labels describe GPUs that are not excluded, including renamed ones, and MIG devices that keep their default resource.
func TestRules(t *testing.T) {
	first := allocator.Selector{Index: []int{0}}
	all := mig(h100s(2), []string{"1g.10gb"})
	withDisplay := func(inv *gpu.Inventory) *gpu.Inventory {
		display := gpu.GPU{Product: "NVIDIA T400", PCIClass: "0x030000", MIG: gpu.MIGUnsupported}
		inv.GPUs = append([]gpu.GPU{display}, inv.GPUs...)
		return inv
	}
	for name, tc := range map[string]struct {
		inv      *gpu.Inventory
		strategy allocator.MIGStrategy
		rules    allocator.Rules
		want     map[string]string
	}{
		"one excluded": {h100s(2), allocator.MIGNone, allocator.Rules{{Select: first, Exclude: true}}, map[string]string{"gpu.count": "1", "gpu.replicas": "1"}},
		"display excluded": {withDisplay(h100s(1)), allocator.MIGNone, allocator.Rules{{Select: first, Exclude: true}},
			map[string]string{"gpu.mode": "compute", "gpu.product": "NVIDIA-H100-80GB-HBM3"}},
		"single, display excluded": {withDisplay(mig(h100s(1), []string{"1g.10gb", "2g.20gb"})), allocator.MIGSingle,
			allocator.Rules{{Select: first, Exclude: true}}, map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID"}},
		"all excluded": {h100s(2), allocator.MIGNone, allocator.Rules{{Name: "nvidia.com/gpu", Exclude: true}},
			map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.count": "0", "gpu.replicas": "0"}},
		"MPS": {h100s(2), allocator.MIGNone, allocator.Rules{{Name: "nvidia.com/gpu", Replicas: 4, Limits: allocator.LimitMemoryAndCompute}},
			map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "gpu.sharing-strategy": "mps", "mps.capable": "false"}},
		"named and shared": {h100s(2), allocator.MIGNone, allocator.Rules{{Select: first, Name: "nvidia.com/h100", Replicas: 3}},
			map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.count": "2", "gpu.replicas": "3", "gpu.sharing-strategy": "time-slicing"}},
		"single, whole GPU excluded": {all, allocator.MIGSingle, allocator.Rules{{Select: allocator.Selector{Index: []int{1}}, Exclude: true}},
			map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "gpu.count": "1"}},
		"single, partitioned GPU excluded": {all, allocator.MIGSingle, allocator.Rules{{Select: first, Exclude: true}},
			map[string]string{"gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.count": "1"}},
		"mixed, named": {all, allocator.MIGMixed, allocator.Rules{{Select: allocator.Selector{MIG: "1g.*"}, Name: "nvidia.com/small"}},
			map[string]string{"gpu.count": "2", "mig-1g.10gb.count": ""}},
	} {
		for i := range tc.inv.GPUs {
			tc.inv.GPUs[i].Index = i
		}
		got := labels.Of(tc.inv, allocator.Policy{MIG: tc.strategy, Rules: tc.rules}, "")
		for label, want := range tc.want {
			if v := got["nvidia.com/"+label]; v != want {
				t.Errorf("%s: %s is %q, want %q", name, label, v, want)
			}
		}
	}
}

func fault(message string) gpu.Fault { return gpu.Fault{Code: gpu.FaultRowsFailed, Message: message} }
