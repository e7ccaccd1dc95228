package gpu_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestRetainKeepsMissingGPUs(t *testing.T) {
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
			{UUID: "GPU-a", Minor: 0, Fault: gpu.Gone()},
		},
	}
	if !reflect.DeepEqual(kept, want) {
		t.Errorf("got %+v, want %+v", kept, want)
	}
	if len(now.GPUs) != 1 {
		t.Error("Retain modified its argument")
	}
	back := gpu.Retain(kept, earlier)
	if !reflect.DeepEqual(back.GPUs, earlier.GPUs) {
		t.Errorf("after the GPU returned: got %+v, want %+v", back.GPUs, earlier.GPUs)
	}
}

func TestRetainDistinguishesUnreadableFromGone(t *testing.T) {
	earlier := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}}
	now := &gpu.Inventory{Unreadable: []gpu.Unreadable{{Index: 1, Fault: fault("opening GPU 1: GPU is lost")}}}
	kept := gpu.Retain(earlier, now)
	for uuid, want := range map[string]gpu.Fault{"GPU-a": gpu.Gone(), "GPU-b": fault("opening GPU 1: GPU is lost")} {
		if g, _ := kept.Find(uuid); g.Fault != want {
			t.Errorf("%s: fault %+v, want %+v", uuid, g.Fault, want)
		}
	}
}

// An Unreadable entry applies to a missing GPU only if it cannot be any other device.
func TestRetainMatchesUnreadableGPUs(t *testing.T) {
	lost := fault("GPU is lost")
	two := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1"}}}}}
	onlyB := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-b", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1"}}}}}
	for name, tc := range map[string]struct {
		earlier, now *gpu.Inventory
		want         map[string]gpu.Fault
	}{
		"unreadable MIG device of a readable GPU": {
			two,
			&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-b"}}, Unreadable: []gpu.Unreadable{{Index: 0, Fault: lost}}},
			map[string]gpu.Fault{"GPU-a": gpu.Gone()},
		},
		"indexes shifted": {
			two,
			&gpu.Inventory{Unreadable: []gpu.Unreadable{{Index: 0, Fault: lost}}},
			map[string]gpu.Fault{"GPU-a": gpu.Gone(), "GPU-b": gpu.Gone(), "MIG-1": gpu.Gone()},
		},
		"obsolete index": {
			gpu.Retain(two, onlyB),
			&gpu.Inventory{Unreadable: []gpu.Unreadable{{Index: 0, Fault: lost}}},
			map[string]gpu.Fault{"GPU-a": gpu.Gone(), "GPU-b": lost, "MIG-1": {}},
		},
		"unreadable before": {
			gpu.Retain(two, &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}}, Unreadable: []gpu.Unreadable{{Index: 1, Fault: lost}}}),
			&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}}, Unreadable: []gpu.Unreadable{{Index: 1, Fault: lost}}},
			map[string]gpu.Fault{"GPU-a": {}, "GPU-b": lost, "MIG-1": {}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept := gpu.Retain(tc.earlier, tc.now)
			for uuid, want := range tc.want {
				if got := kept.Fault(uuid); got != want {
					t.Errorf("%s: fault %+v, want %+v", uuid, got, want)
				}
			}
		})
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
		Unreadable: []gpu.Unreadable{{Index: 2, Fault: fault("no answer")}},
	}
	kept := gpu.Retain(earlier, now)
	want := []gpu.GPU{
		{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", Index: 0}, {UUID: "MIG-1", Index: 0, Fault: gpu.Gone()}}},
		{UUID: "GPU-b", Index: 1, Fault: gpu.Gone(), MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3", Fault: gpu.Gone()}}},
		{UUID: "GPU-c", Index: 2, Fault: fault("no answer"), MIGDevices: []gpu.MIGDevice{{UUID: "MIG-4"}}},
	}
	if !reflect.DeepEqual(kept.GPUs, want) {
		t.Errorf("got %+v, want %+v", kept.GPUs, want)
	}
	if back := gpu.Retain(kept, earlier); !reflect.DeepEqual(back.GPUs, earlier.GPUs) {
		t.Errorf("after the MIG devices returned: got %+v, want %+v", back.GPUs, earlier.GPUs)
	}
}

// A device that could not be read completely keeps its attributes from the earlier inventory.
func TestRetainKeepsAttributesOfPartialDevices(t *testing.T) {
	earlier := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Minor: 3, PCIBusID: "0000:18:00.0", MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", GPUInstance: 1}}},
		{UUID: "GPU-b", Index: 1, Minor: 4, MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", GPUInstance: 2, Profile: "1g.10gb"}}},
	}}
	now := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-b", Index: 0, Minor: 4, MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", Index: 1, Fault: fault("no name"), Partial: true}}},
		{UUID: "GPU-a", Index: 1, Minor: gpu.MinorUnknown, MIG: gpu.MIGUnsupported, Fault: fault("no minor"), Partial: true},
		{UUID: "GPU-c", Index: 2, Minor: gpu.MinorUnknown, Fault: fault("no minor"), Partial: true},
	}}
	want := []gpu.GPU{
		{UUID: "GPU-b", Minor: 4, MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{
			{UUID: "MIG-2", Index: 1, GPUInstance: 2, Profile: "1g.10gb", Fault: fault("no name"), Partial: true}}},
		{UUID: "GPU-a", Index: 1, Minor: 3, PCIBusID: "0000:18:00.0", MIG: gpu.MIGEnabled, Fault: fault("no minor"), Partial: true,
			MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", GPUInstance: 1}}},
		now.GPUs[2],
	}
	kept := gpu.Retain(earlier, now)
	if !reflect.DeepEqual(kept.GPUs, want) {
		t.Errorf("got %+v, want %+v", kept.GPUs, want)
	}
	if now.GPUs[1].Minor != gpu.MinorUnknown {
		t.Error("Retain modified its argument")
	}
	if back := gpu.Retain(kept, earlier); !reflect.DeepEqual(back.GPUs[:2], earlier.GPUs) {
		t.Errorf("after they were read: got %+v, want %+v", back.GPUs, earlier.GPUs)
	}
}

func TestPruneRemovesOnlyGoneDevicesNotKept(t *testing.T) {
	gone := gpu.Gone()
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", Fault: gone}, {UUID: "MIG-2", Fault: gone}, {UUID: "MIG-3", Fault: fault("broken")}}},
		{UUID: "GPU-b", Fault: gone, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-4", Fault: gone}, {UUID: "MIG-5", Fault: gone}}},
		{UUID: "GPU-c", Fault: gone},
		{UUID: "GPU-d", Fault: fault("broken")},
		{UUID: "GPU-e", Fault: gone},
	}}
	got := inv.Prune(func(uuid string) bool { return uuid == "MIG-2" || uuid == "MIG-5" || uuid == "GPU-e" })
	want := []gpu.GPU{
		{UUID: "GPU-a", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-2", Fault: gone}, {UUID: "MIG-3", Fault: fault("broken")}}},
		{UUID: "GPU-b", Fault: gone, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-5", Fault: gone}}},
		{UUID: "GPU-d", Fault: fault("broken")},
		{UUID: "GPU-e", Fault: gone},
	}
	if !reflect.DeepEqual(got.GPUs, want) {
		t.Errorf("got %+v, want %+v", got.GPUs, want)
	}
	if len(inv.GPUs) != 5 || len(inv.GPUs[0].MIGDevices) != 3 {
		t.Error("the original inventory was modified")
	}
}

func TestWithFaultsKeepsExistingFaults(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Fault: fault("lost"), MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1"}, {UUID: "MIG-2", Fault: fault("gone")}}},
		{UUID: "GPU-b"},
		{UUID: "GPU-c", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3"}, {UUID: "MIG-4"}}},
	}}
	got := inv.WithFaults(func(uuid string) gpu.Fault {
		return map[string]gpu.Fault{"GPU-a": fault("later"), "GPU-b": fault("no node"), "MIG-1": fault("own fault"), "MIG-3": fault("no capability")}[uuid]
	})
	want := []gpu.GPU{
		{UUID: "GPU-a", Fault: fault("lost"), MIGDevices: []gpu.MIGDevice{{UUID: "MIG-1", Fault: fault("lost")}, {UUID: "MIG-2", Fault: fault("gone")}}},
		{UUID: "GPU-b", Fault: fault("no node")},
		{UUID: "GPU-c", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-3", Fault: fault("no capability")}, {UUID: "MIG-4"}}},
	}
	if !reflect.DeepEqual(got.GPUs, want) {
		t.Errorf("got %+v, want %+v", got.GPUs, want)
	}
	if !inv.GPUs[1].Fault.None() || !inv.GPUs[2].MIGDevices[0].Fault.None() {
		t.Error("the original inventory was modified")
	}
}

func fault(message string) gpu.Fault { return gpu.Fault{Code: "code", Message: message} }

func TestSame(t *testing.T) {
	f := gpu.Fault{Code: gpu.FaultECC, Message: "2 errors", Remedy: "reset", Since: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		change func(*gpu.Fault)
		same   bool
	}{
		"remedy":  {func(f *gpu.Fault) { f.Remedy = "" }, true},
		"since":   {func(f *gpu.Fault) { f.Since = time.Time{} }, true},
		"code":    {func(f *gpu.Fault) { f.Code = gpu.FaultRowsFailed }, false},
		"message": {func(f *gpu.Fault) { f.Message = "3 errors" }, false},
	} {
		g := f
		tc.change(&g)
		if got := f.Same(g); got != tc.same {
			t.Errorf("%s differs: Same returned %v, want %v", name, got, tc.same)
		}
	}
	if f.None() || !(gpu.Fault{}).None() {
		t.Error("None must return true for the zero Fault only")
	}
}

// docs/health.md must list every fault code.
func TestDocumentedCodes(t *testing.T) {
	text, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []gpu.FaultCode
	for _, row := range regexp.MustCompile("(?m)^\\| [^|]+ \\| `([a-z_]+)` \\|").FindAllSubmatch(text, -1) {
		documented = append(documented, gpu.FaultCode(row[1]))
	}
	codes := []gpu.FaultCode{gpu.FaultUnresponsive, gpu.FaultGone, gpu.FaultECC, gpu.FaultRepairPending, gpu.FaultRowsFailed, gpu.FaultRecoveryNeeded,
		gpu.FaultUnreadable, gpu.FaultDriver, gpu.FaultDeviceNode, gpu.FaultSpec, gpu.FaultConfig, gpu.FaultForeignHolder, gpu.FaultCordoned, gpu.FaultMPS}
	slices.Sort(codes)
	slices.Sort(documented)
	if !slices.Equal(codes, documented) {
		t.Errorf("docs/health.md lists the codes %q, want %q", documented, codes)
	}
}
