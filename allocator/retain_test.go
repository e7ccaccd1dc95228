package allocator

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/config"
)

func always(string, string) bool { return true }

func TestRetainListsWhatHasLeft(t *testing.T) {
	mixed := func(inv *gpu.Inventory) []*Resource { return Plan(inv, testKind, config.MIGMixed, nil) }
	anew := cut(times(2, "3g.20gb"), nil)
	anew.GPUs[0].MIGDevices[1].GPUInstance = 1
	for _, tc := range []struct {
		name        string
		before, now []*Resource
		want        []string
	}{
		{"nothing changes", mixed(cut(nil, nil)), mixed(cut(nil, nil)), []string{"gpu: GPU-0 GPU-1"}},
		{"a GPU goes", mixed(cut(nil, nil)), mixed(cut(nil)), []string{"gpu: GPU-0 GPU-1!"}},
		// Who held a MIG device has its GPU's node.
		{"MIG mode is turned off", mixed(cut(times(1, "1g.5gb"), nil)), mixed(cut(nil, nil)),
			[]string{"gpu: GPU-0! GPU-1", "mig-1g.5gb: MIG-0.0!"}},
		// Who held the GPU has none of the nodes of its MIG devices.
		{"MIG mode is turned on", mixed(cut(nil, nil)), mixed(cut(times(2, "3g.20gb"), nil)),
			[]string{"gpu: GPU-1 GPU-0!", "mig-3g.20gb: MIG-0.0 MIG-0.1"}},
		// The same instances are the same nodes, and so is the name that the driver makes of them.
		{"a GPU is cut anew", mixed(cut(times(2, "1g.5gb"), nil)), mixed(anew),
			[]string{"gpu: GPU-1", "mig-3g.20gb: MIG-0.0! MIG-0.1", "mig-1g.5gb: MIG-0.0! MIG-0.1!"}},
		{"the strategy changes", Plan(cut(times(1, "1g.5gb")), testKind, config.MIGSingle, nil), mixed(cut(times(1, "1g.5gb"))),
			[]string{"gpu: MIG-0.0!", "mig-1g.5gb: MIG-0.0!"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kept := Retain(tc.before, tc.now, always)
			if got := listed(kept); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			// It stays so, until nobody holds what has left.
			if got := listed(Retain(kept, tc.now, always)); !slices.Equal(got, tc.want) {
				t.Errorf("the next time %q, want %q", got, tc.want)
			}
			got := Retain(kept, tc.now, func(string, string) bool { return false })
			if want := listed(tc.now); !slices.Equal(listed(got)[:len(want)], want) {
				t.Errorf("once nobody holds any: %q, want %q", listed(got), want)
			}
			for _, r := range got[len(tc.now):] {
				if len(r.Devices) > 0 {
					t.Errorf("once nobody holds any, %s lists %v", r.Name, r.Devices)
				}
			}
		})
	}
}

func TestRetainLetsSingleDevicesGo(t *testing.T) {
	before := Plan(cut(times(2, "1g.5gb")), testKind, config.MIGMixed, nil)
	got := Retain(before, Plan(cut(nil), testKind, config.MIGMixed, nil), func(resource, id string) bool {
		return resource == "nvidia.com/mig-1g.5gb" && id == "MIG-0.1"
	})
	want := []string{"gpu: GPU-0!", "mig-1g.5gb: MIG-0.1!"}
	if !slices.Equal(listed(got), want) || !strings.Contains(got[0].Devices[0].Fault, "MIG-0.1") {
		t.Errorf("got %q (%s), want %q", listed(got), got[0].Devices[0].Fault, want)
	}
}

// What has left because it is gone says so.
func TestRetainTellsWhatIsGone(t *testing.T) {
	inv := cut(nil, times(2, "1g.5gb"))
	before := Plan(inv, testKind, config.MIGMixed, nil)
	inv.GPUs[0].Fault, inv.GPUs[1].MIGDevices[0].Fault = gpu.FaultGone, gpu.FaultGone
	for _, r := range Retain(before, Plan(inv, testKind, config.MIGMixed, nil), always) {
		if d := r.Devices[len(r.Devices)-1]; !d.Left || d.Fault != gpu.FaultGone {
			t.Errorf("%s lists %+v, want it to have left as gone", r.Name, d)
		}
	}
}

func TestRetainKeepsPreferring(t *testing.T) {
	inv := topologies["8 in bridged pairs"]()
	more := topologies["8 in bridged pairs"]()
	more.GPUs = append(more.GPUs, gpu.GPU{UUID: "GPU-8"})
	r := Retain(Plan(more, testKind, config.MIGNone, nil), Plan(inv, testKind, config.MIGNone, nil), always)[0]
	if got, err := r.Prefer(append(all(8), "GPU-8"), nil, 2); err != nil || !slices.Equal(got, gpus(0, 4)) {
		t.Errorf("Prefer = %v, %v; want the first pair, 0 and 4", got, err)
	}
}

func TestWithdraw(t *testing.T) {
	sick := cut(nil, nil, nil)
	sick.GPUs[1].Fault = "lost"
	sick.GPUs = append(sick.GPUs, gpu.GPU{UUID: "GPU-new"})
	before := Plan(cut(nil, nil, nil), testKind, config.MIGNone, nil)
	if got, want := listed(Withdraw(before, Plan(sick, testKind, config.MIGNone, nil))), []string{"gpu: GPU-0 GPU-1! GPU-2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestChanges(t *testing.T) {
	before := cut(times(2, "1g.5gb"), nil)
	after := cut(times(3, "1g.5gb"), nil)
	after.GPUs[0].MIGDevices[1].Fault = "lost"
	var got []string
	for _, c := range Changes(Plan(before, testKind, config.MIGMixed, nil), Plan(after, testKind, config.MIGMixed, nil)) {
		line := c.Resource + " " + c.Device.ID + " " + c.Device.Fault
		if c.New {
			line += "new"
		}
		got = append(got, line)
	}
	want := []string{"nvidia.com/mig-1g.5gb MIG-0.1 lost", "nvidia.com/mig-1g.5gb MIG-0.2 new"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAdopt(t *testing.T) {
	now := Plan(cut(times(1, "1g.5gb"), nil), testKind, config.MIGMixed, nil)
	for _, tc := range []struct {
		what, resource, id string
		want               []string
	}{
		{"gone", GPUResource, "GPU-gone", []string{"gpu: GPU-1 GPU-gone!", "mig-1g.5gb: MIG-0.0"}},
		{"gone, of a profile that is no more", "nvidia.com/mig-7g.40gb", "MIG-gone",
			[]string{"gpu: GPU-1", "mig-1g.5gb: MIG-0.0", "mig-7g.40gb: MIG-gone!"}},
		{"offered as something else now", GPUResource, "MIG-0.0", []string{"gpu: GPU-1 MIG-0.0!", "mig-1g.5gb: MIG-0.0!"}},
		{"listed", GPUResource, "GPU-1", []string{"gpu: GPU-1", "mig-1g.5gb: MIG-0.0"}},
		{"not ours", "example.com/gpu", "GPU-gone", []string{"gpu: GPU-1", "mig-1g.5gb: MIG-0.0"}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			adopted := Adopt(now, tc.resource, tc.id, testKind)
			if got := listed(adopted); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if again := listed(Retain(adopted, now, always)); !slices.Equal(again, tc.want) {
				t.Errorf("the next time %q, want %q", again, tc.want)
			}
		})
	}
}
