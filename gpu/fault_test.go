package gpu_test

import (
	"reflect"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestRetainKeepsWhatWasThere(t *testing.T) {
	earlier := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Minor: 0, Links: []gpu.Link{{Peer: "GPU-b", NVLinks: 18}}},
		{UUID: "GPU-b", Minor: 1},
	}}
	now := &gpu.Inventory{
		Driver: gpu.Driver{Version: "2"},
		GPUs:   []gpu.GPU{{UUID: "GPU-b", Minor: 5}},
	}
	kept := gpu.Retain(earlier, now)
	want := &gpu.Inventory{
		Driver: gpu.Driver{Version: "2"},
		GPUs: []gpu.GPU{
			{UUID: "GPU-b", Minor: 5},
			{UUID: "GPU-a", Minor: 0, Fault: gpu.FaultGone},
		},
	}
	if !reflect.DeepEqual(kept, want) {
		t.Errorf("got %+v, want %+v", kept, want)
	}
	if len(now.GPUs) != 1 {
		t.Error("the later reading was changed")
	}
	back := gpu.Retain(kept, earlier)
	if !reflect.DeepEqual(back.GPUs, earlier.GPUs) {
		t.Errorf("a GPU that returns: got %+v, want %+v", back.GPUs, earlier.GPUs)
	}
}

func TestRetainTellsAnUnreadableGPUFromOneThatIsGone(t *testing.T) {
	earlier := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}}
	now := &gpu.Inventory{Unreadable: []gpu.Unreadable{{Index: 1, Fault: "opening GPU 1: GPU is lost"}}}
	kept := gpu.Retain(earlier, now)
	for uuid, want := range map[string]string{"GPU-a": gpu.FaultGone, "GPU-b": "opening GPU 1: GPU is lost"} {
		if g, _ := kept.Find(uuid); g.Fault != want {
			t.Errorf("%s: fault %q, want %q", uuid, g.Fault, want)
		}
	}
}

func TestRetainKeepsMIGDevices(t *testing.T) {
	earlier := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", Index: 0}, {UUID: "MIG-2", Index: 1}}},
		{UUID: "GPU-b", Index: 1, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3"}}},
		{UUID: "GPU-c", Index: 2, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-4"}}},
	}}
	now := &gpu.Inventory{
		GPUs:       []gpu.GPU{{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", Index: 0}}}},
		Unreadable: []gpu.Unreadable{{Index: 2, Fault: "no answer"}},
	}
	kept := gpu.Retain(earlier, now)
	want := []gpu.GPU{
		{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", Index: 0}, {UUID: "MIG-1", Index: 0, Fault: gpu.FaultGone}}},
		{UUID: "GPU-b", Index: 1, Fault: gpu.FaultGone, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3", Fault: gpu.FaultGone}}},
		{UUID: "GPU-c", Index: 2, Fault: "no answer", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-4"}}},
	}
	if !reflect.DeepEqual(kept.GPUs, want) {
		t.Errorf("got %+v, want %+v", kept.GPUs, want)
	}
	if back := gpu.Retain(kept, earlier); !reflect.DeepEqual(back.GPUs, earlier.GPUs) {
		t.Errorf("MIG devices that return: got %+v, want %+v", back.GPUs, earlier.GPUs)
	}
}

func TestForgetDropsOnlyWhatIsGoneAndNotKept(t *testing.T) {
	gone := gpu.FaultGone
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", Fault: gone}, {UUID: "MIG-2", Fault: gone}, {UUID: "MIG-3", Fault: "sick"}}},
		{UUID: "GPU-b", Fault: gone, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-4", Fault: gone}, {UUID: "MIG-5", Fault: gone}}},
		{UUID: "GPU-c", Fault: gone},
		{UUID: "GPU-d", Fault: "sick"},
		{UUID: "GPU-e", Fault: gone},
	}}
	got := inv.Forget(func(uuid string) bool { return uuid == "MIG-2" || uuid == "MIG-5" || uuid == "GPU-e" })
	want := []gpu.GPU{
		{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", Fault: gone}, {UUID: "MIG-3", Fault: "sick"}}},
		{UUID: "GPU-b", Fault: gone, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-5", Fault: gone}}},
		{UUID: "GPU-d", Fault: "sick"},
		{UUID: "GPU-e", Fault: gone},
	}
	if !reflect.DeepEqual(got.GPUs, want) {
		t.Errorf("got %+v, want %+v", got.GPUs, want)
	}
	if len(inv.GPUs) != 5 || len(inv.GPUs[0].MIGDevices) != 3 {
		t.Error("the inventory itself was changed")
	}
}

func TestWithFaultsKeepsTheNearerCause(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Fault: "lost", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1"}, {UUID: "MIG-2", Fault: "gone"}}},
		{UUID: "GPU-b"},
		{UUID: "GPU-c", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3"}, {UUID: "MIG-4"}}},
	}}
	got := inv.WithFaults(func(uuid string) string {
		return map[string]string{"GPU-a": "later", "GPU-b": "no node", "MIG-1": "of its own", "MIG-3": "no capability"}[uuid]
	})
	want := []gpu.GPU{
		{UUID: "GPU-a", Fault: "lost", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", Fault: "lost"}, {UUID: "MIG-2", Fault: "gone"}}},
		{UUID: "GPU-b", Fault: "no node"},
		{UUID: "GPU-c", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3", Fault: "no capability"}, {UUID: "MIG-4"}}},
	}
	if !reflect.DeepEqual(got.GPUs, want) {
		t.Errorf("got %+v, want %+v", got.GPUs, want)
	}
	if inv.GPUs[1].Fault != "" || inv.GPUs[2].MIGDevices[0].Fault != "" {
		t.Error("the inventory itself was changed")
	}
}
