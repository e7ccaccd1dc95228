package gpu_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// The driver worker sends the inventory to the agent as JSON.
func TestInventoryJSONRoundTrip(t *testing.T) {
	want := gpu.Inventory{
		Platform: gpu.WSL2, Driver: gpu.Driver{Version: "580.95.05", CUDA: gpu.CUDAVersion{Major: 13, Minor: 1}},
		GPUs: []gpu.GPU{{
			UUID: "GPU-a", Index: 2, Minor: 3, PCIBusID: "0000:18:00.0", NUMANode: gpu.NUMAUnknown, PCIClass: "0x030200", PCIeRoot: "pci0000:17", PCIeSwitches: []string{"0000:18:00.0"}, Brand: "Nvidia", AddressingMode: "HMM", Clique: "6f8f3c8e-0000-4000-8000-000000000001.3",
			Product: "NVIDIA H100", Architecture: "Hopper", ComputeCapability: gpu.ComputeCapability{Major: 9, Minor: 0},
			MemoryBytes: 85 << 30, MIG: gpu.MIGEnabled, MemoryLimits: gpu.MemoryLimitsMIG, Fault: gpu.Fault{Code: gpu.FaultUnreadable, Message: "lost", Remedy: "reset", Since: time.Unix(1e9, 0).UTC()},
			MIGDevices: []gpu.MIGDevice{{
				UUID: "MIG-a", Index: 1, Profile: "1g.10gb+me", GPUInstance: 7, ComputeInstance: 2,
				MemoryBytes: 10 << 30, Placement: gpu.Placement{Start: 3, Size: 1}, Fault: fault("gone"),
				Multiprocessors: 14, GPUSlices: 1, ComputeSlices: 1, Engines: gpu.Engines{Copy: 1, Decoder: 2, Encoder: 3, JPEG: 4, OFA: 5}, Partial: true,
			}},
			VGPU: &gpu.VGPU{HostDriver: "550.127.06", HostBranch: "r550_00"}, Partial: true,
			Links: []gpu.Link{{Peer: "GPU-b", NVLinks: 18, PCIe: gpu.CrossNUMA}, {Peer: "GPU-c", PCIe: gpu.PCIeUnknown}},
		}},
		Unreadable: []gpu.Unreadable{{Index: 1, Fault: fault("gone")}},
	}
	for _, v := range []reflect.Value{reflect.ValueOf(want), reflect.ValueOf(want.GPUs[0]), reflect.ValueOf(want.GPUs[0].MIGDevices[0]), reflect.ValueOf(want.GPUs[0].Fault)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Fatalf("%s is not set, so the test would not detect its loss", v.Type().Field(i).Name)
			}
		}
	}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got gpu.Inventory
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
