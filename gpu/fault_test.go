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

func TestWithFaultsKeepsTheNearerCause(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Fault: "lost"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}}
	got := inv.WithFaults(func(g gpu.GPU) string {
		return map[string]string{"GPU-a": "later", "GPU-b": "no node"}[g.UUID]
	})
	for uuid, want := range map[string]string{"GPU-a": "lost", "GPU-b": "no node", "GPU-c": ""} {
		if g, _ := got.Find(uuid); g.Fault != want {
			t.Errorf("%s: fault %q, want %q", uuid, g.Fault, want)
		}
	}
	if g, _ := inv.Find("GPU-b"); g.Fault != "" {
		t.Error("the inventory itself was changed")
	}
}

func TestChanges(t *testing.T) {
	before := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}}}
	after := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b", Fault: "lost"}, {UUID: "GPU-c"}}}
	want := []gpu.Change{{GPU: after.GPUs[1]}, {GPU: after.GPUs[2], New: true}}
	if got := gpu.Changes(before, after); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
