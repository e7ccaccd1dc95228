package dra

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

const gib = 1 << 30

func gpuID(i int) string { return fmt.Sprintf("GPU-4fbdcb86-5b5c-4b5f-8c3a-00000000000%d", i) }
func migID(i int) string { return fmt.Sprintf("MIG-4fbdcb86-5b5c-5b5f-8c3a-00000000000%d", i) }

// pairs returns an inventory of n H100 GPUs. Each pair has NVLinks, a PCIe switch and a NUMA node in common. The last
// GPU has two MIG devices.
func pairs(n int) *gpu.Inventory {
	inv := &gpu.Inventory{Driver: gpu.Driver{Version: "580.95.05", CUDA: gpu.CUDAVersion{Major: 13}}}
	for i := range n {
		g := gpu.GPU{
			UUID: gpuID(i), Index: i, Minor: i, PCIBusID: fmt.Sprintf("0000:%d8:00.0", i), NUMANode: i / 2,
			PCIeRoot: fmt.Sprintf("pci0000:%d0", i/2), PCIeSwitches: []string{fmt.Sprintf("0000:%d1:00.0", i), fmt.Sprintf("0000:%d2:00.0", i/2)},
			Product: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", AddressingMode: "HMM",
			ComputeCapability: gpu.ComputeCapability{Major: 9}, MemoryBytes: 80 * gib, MIG: gpu.MIGDisabled,
		}
		for j := range n {
			link := gpu.Link{Peer: gpuID(j), PCIe: gpu.CrossNUMA}
			if j/2 == i/2 {
				link.NVLinks, link.PCIe = 18, gpu.OneSwitch
			}
			if j != i {
				g.Links = append(g.Links, link)
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	last := &inv.GPUs[n-1]
	last.MIG = gpu.MIGEnabled
	for i, profile := range []string{"3g.40gb", "1g.10gb+me"} {
		last.MIGDevices = append(last.MIGDevices, gpu.MIGDevice{
			UUID: migID(i), Index: i, Profile: profile, MemoryBytes: 9984 << 20, Placement: gpu.Placement{Start: 4 * i, Size: 4 - 3*i},
			Multiprocessors: 60, Engines: gpu.Engines{Copy: 3, Decoder: 2, Encoder: 1, JPEG: 4, OFA: 5},
		})
	}
	return inv
}

// offersOf returns the offers of the whole GPUs and MIG devices of an inventory.
func offersOf(inv *gpu.Inventory) (offers []Offer) {
	isolation := allocator.Device{}.Isolation()
	for _, g := range inv.GPUs {
		if g.MIG != gpu.MIGEnabled {
			offers = append(offers, Offer{ID: g.UUID, Resource: "nvidia.com/gpu", Fault: g.Fault, Isolation: isolation})
		}
		for _, m := range g.MIGDevices {
			offers = append(offers, Offer{ID: m.UUID, Resource: "nvidia.com/mig-" + strings.ReplaceAll(m.Profile, "+", "."), Fault: m.Fault, Isolation: isolation})
		}
	}
	return offers
}

// text formats the attributes and capacities of a device, one per line.
func text(d cluster.Device) string {
	var lines []string
	for name, value := range d.Attributes {
		encoded, _ := json.Marshal(value)
		lines = append(lines, name+" "+strings.Trim(string(encoded), "{}"))
	}
	for name, capacity := range d.Capacity {
		lines = append(lines, name+" = "+capacity.Value)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestDevices(t *testing.T) {
	inv := pairs(4)
	devices := Devices(inv, offersOf(inv), cluster.NoSchedule)
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	want := []string{
		"gpu-4fbdcb86-5b5c-4b5f-8c3a-000000000000", "gpu-4fbdcb86-5b5c-4b5f-8c3a-000000000001", "gpu-4fbdcb86-5b5c-4b5f-8c3a-000000000002",
		"mig-4fbdcb86-5b5c-5b5f-8c3a-000000000000", "mig-4fbdcb86-5b5c-5b5f-8c3a-000000000001",
	}
	if !slices.Equal(names, want) {
		t.Fatalf("devices %q, want %q", names, want)
	}
	for i, want := range map[int]string{
		1: `addressingMode "string":"HMM"
architecture "string":"Hopper"
brand "string":"Nvidia"
cudaComputeCapability "version":"9.0.0"
cudaDriverVersion "version":"13.0.0"
driverVersion "version":"580.95.5"
gpucdi.dev/computeIsolation "string":"hardware"
gpucdi.dev/memoryIsolation "string":"hardware"
gpucdi.dev/nvlinkDomain "string":"GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000000"
gpucdi.dev/pcieSwitch "string":"0000:02:00.0"
gpucdi.dev/resource "string":"nvidia.com/gpu"
gpucdi.dev/set2 "string":"GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000000"
gpucdi.dev/set4 "string":"GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000001"
gpucdi.dev/set8 "string":"GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000001"
memory = 80Gi
productName "string":"NVIDIA H100 80GB HBM3"
resource.kubernetes.io/numaNode "int":0
resource.kubernetes.io/pciBusID "string":"0000:18:00.0"
resource.kubernetes.io/pcieRoot "string":"pci0000:00"
type "string":"gpu"
uuid "string":"GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000001"`,
		4: `addressingMode "string":"HMM"
architecture "string":"Hopper"
brand "string":"Nvidia"
copyEngines = 3
cudaComputeCapability "version":"9.0.0"
cudaDriverVersion "version":"13.0.0"
decoders = 2
driverVersion "version":"580.95.5"
encoders = 1
gpucdi.dev/computeIsolation "string":"hardware"
gpucdi.dev/memoryIsolation "string":"hardware"
gpucdi.dev/pcieSwitch "string":"0000:12:00.0"
gpucdi.dev/resource "string":"nvidia.com/mig-1g.10gb.me"
jpegEngines = 4
memory = 9984Mi
memorySlice4 = 1
multiprocessors = 60
ofaEngines = 5
parentUUID "string":"GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000003"
productName "string":"NVIDIA H100 80GB HBM3"
profile "string":"1g.10gb+me"
resource.kubernetes.io/numaNode "int":1
resource.kubernetes.io/pciBusID "string":"0000:38:00.0"
resource.kubernetes.io/pcieRoot "string":"pci0000:10"
type "string":"mig"
uuid "string":"MIG-4fbdcb86-5b5c-5b5f-8c3a-000000000001"`,
	} {
		if got := text(devices[i]); got != want {
			t.Errorf("%s has:\n%s\nwant:\n%s", devices[i].Name, got, want)
		}
	}
}

// optional matches the attributes and capacities that a device can lack.
var optional = regexp.MustCompile(`^(resource\.kubernetes\.io/(pcieRoot|numaNode)|memorySlice\d)$`)

// keys returns the names of the attributes and capacities that a device must have.
func keys(d cluster.Device) []string {
	all := slices.Concat(slices.Collect(maps.Keys(d.Attributes)), slices.Collect(maps.Keys(d.Capacity)))
	all = slices.DeleteFunc(all, optional.MatchString)
	slices.Sort(all)
	return all
}

// A device has all attributes of its type even if the driver reports no values, or values out of range.
func TestDevicesHaveAllAttributes(t *testing.T) {
	full := pairs(4)
	complete := Devices(full, offersOf(full), cluster.NoSchedule)
	long := pairs(4)
	for i := range long.GPUs {
		g := &long.GPUs[i]
		g.Product, g.Brand, g.PCIeRoot = strings.Repeat("ü", 50), strings.Repeat("x", 100), strings.Repeat("y", 100)
		g.PCIeSwitches = slices.Repeat([]string{"0000:01:00.0"}, 8)
		for j := range g.MIGDevices {
			g.MIGDevices[j].Placement = gpu.Placement{Start: -j << 62, Size: 1 << 62}
			g.MIGDevices[j].Engines.Copy = -1
		}
	}
	long.Driver.Version = strings.Repeat("9", 100)
	partial := pairs(4)
	for i, g := range partial.GPUs {
		for j := range g.MIGDevices {
			g.MIGDevices[j] = gpu.MIGDevice{UUID: g.MIGDevices[j].UUID, Partial: true}
		}
		partial.GPUs[i] = gpu.GPU{UUID: g.UUID, Index: i, NUMANode: gpu.NUMAUnknown, MIGDevices: g.MIGDevices, Partial: true}
	}
	partial.Driver.Version = "R999 beta"
	for name, inv := range map[string]*gpu.Inventory{"empty": {}, "partial": partial, "long": long} {
		offers := offersOf(full)
		for i := range offers {
			offers[i].Resource = "example.com/" + strings.Repeat("r", 60)
		}
		for i, d := range Devices(inv, offers, cluster.NoSchedule) {
			if got, want := keys(d), keys(complete[i]); !slices.Equal(got, want) {
				t.Errorf("%s: %s has %q, want %q", name, d.Name, got, want)
			}
			checkLimits(t, d)
		}
	}
	for _, d := range complete {
		checkLimits(t, d)
	}
}

// checkLimits checks the limits of the API server, and the strict format of versions.
func checkLimits(t *testing.T, d cluster.Device) {
	t.Helper()
	if n := len(d.Attributes) + len(d.Capacity); n > 32 {
		t.Errorf("%s has %d attributes and capacities", d.Name, n)
	}
	for name, a := range d.Attributes {
		_, id, _ := strings.Cut("/"+name, "/")
		if _, after, found := strings.Cut(id, "/"); found {
			id = after
		}
		if !regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`).MatchString(id) {
			t.Errorf("invalid name %q", name)
		}
		if a.String != nil && (len(*a.String) > 64 || strings.ToValidUTF8(*a.String, "?") != *a.String) {
			t.Errorf("%s of %s is %q", name, d.Name, *a.String)
		}
		if a.Version != nil && !regexp.MustCompile(`^(0|[1-9]\d{0,9})\.(0|[1-9]\d{0,9})\.(0|[1-9]\d{0,9})$`).MatchString(*a.Version) {
			t.Errorf("%s of %s is %q", name, d.Name, *a.Version)
		}
	}
	for name := range d.Capacity {
		if len(name) > 32 {
			t.Errorf("invalid name %q", name)
		}
	}
}

func TestSemver(t *testing.T) {
	for version, want := range map[string]string{
		"580.95.05": "580.95.5", "560.94": "560.94.0", "13.0": "13.0.0", "": "0.0.0", "R580": "0.0.0", "555.42.02-beta": "555.42.0",
		"1.2.3.4": "1.2.3", "99999999999.1": "0.0.0", "-1.0": "0.0.0", "+1": "0.0.0", "470.256.02": "470.256.2",
	} {
		if got := semver(version); got != want {
			t.Errorf("semver(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestLongNamesDiffer(t *testing.T) {
	a, b := shorten(strings.Repeat("x", 80)+"a"), shorten(strings.Repeat("x", 80)+"b")
	if a == b || len(a) != maxValue || shorten("short") != "short" {
		t.Errorf("%q and %q", a, b)
	}
}

func TestTaints(t *testing.T) {
	inv := pairs(4)
	for code, want := range map[gpu.FaultCode]string{
		gpu.XIDFault(79):     "gpu.nvidia.com/xid=79",
		gpu.FaultGone:        "gpu.nvidia.com/gpu-lost=",
		gpu.FaultDeviceNode:  "gpucdi.dev/device_node=",
		gpu.FaultUnreadable:  "gpucdi.dev/unreadable=",
		"xid_":               "gpucdi.dev/xid_=",
		"xid_99999999999999": "gpucdi.dev/xid_99999999999999=",
	} {
		offer := Offer{ID: gpuID(0), Fault: gpu.Fault{Code: code, Message: "broken", Since: time.Now()}}
		got := Devices(inv, []Offer{offer, {ID: gpuID(1)}}, cluster.NoExecute)
		if len(got[0].Taints) != 1 || got[0].Taints[0].Key+"="+got[0].Taints[0].Value != want || got[0].Taints[0].Effect != cluster.NoExecute {
			t.Errorf("%s: taints %+v, want %s", code, got[0].Taints, want)
		}
		if got[1].Taints != nil {
			t.Errorf("a GPU without a fault has %+v", got[1].Taints)
		}
	}
}

func TestInvalidIDsAreOmitted(t *testing.T) {
	inv := pairs(4)
	if got := Devices(inv, []Offer{{ID: "GPU-A"}, {ID: "MIG-GPU-0/1/2"}, {ID: ""}, {ID: gpuID(0)}}, cluster.NoSchedule); len(got) != 1 {
		t.Errorf("devices %+v", got)
	}
}

// A set has only GPUs of one resource.
func TestSetsOfResources(t *testing.T) {
	inv := pairs(5)
	offers := offersOf(inv)[:4]
	offers[0].Resource, offers[2].Resource = "example.com/a", "example.com/a"
	set := map[string]string{}
	for _, d := range Devices(inv, offers, cluster.NoSchedule) {
		set[*d.Attributes["uuid"].String] = *d.Attributes["gpucdi.dev/set2"].String
	}
	want := map[string]string{gpuID(0): gpuID(0), gpuID(2): gpuID(0), gpuID(1): gpuID(1), gpuID(3): gpuID(1)}
	if !maps.Equal(set, want) {
		t.Errorf("sets %v, want %v", set, want)
	}
}

func TestCommonSwitches(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "own and common", PCIeSwitches: []string{"a", "common"}},
		{UUID: "common only", PCIeSwitches: []string{"b", "common"}},
		{UUID: "not shared", PCIeSwitches: []string{"c", "d"}},
		{UUID: "none", PCIBusID: "0000:01:00.0"},
	}}
	want := map[string]string{"own and common": "common", "common only": "common", "not shared": "c", "none": "0000:01:00.0"}
	if got := commonSwitches(inv); !maps.Equal(got, want) {
		t.Errorf("switches %v, want %v", got, want)
	}
}
