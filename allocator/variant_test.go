package allocator

import (
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// A rule with features selects variants of CDI devices. A device is ready once all its selected variants are on disk.
func TestRuleWithFeatures(t *testing.T) {
	inv := fleet()
	policy := Policy{
		Rules: Rules{
			{Select: Selector{Index: []int{0, 1}}, Name: "example.com/render", Features: []string{"graphics", "display", "graphics"}},
			{Name: GPUResource, Features: []string{"video"}},
		},
		VariantFaults: map[string]gpu.Fault{"GPU-1.graphics": fault("no DRM node"), "GPU-3.graphics": fault("not selected")},
	}
	if err := policy.ValidateRules(); err != nil {
		t.Fatal(err)
	}
	devices := map[string]Device{}
	resources := Plan(inv, testKind, policy)
	for _, r := range resources {
		for _, d := range r.Devices {
			devices[d.ID] = d
		}
	}
	for id, want := range map[string]struct {
		names  []string
		faulty bool
	}{
		"GPU-0": {[]string{testKind + "=GPU-0.display", testKind + "=GPU-0.graphics"}, false},
		"GPU-1": {[]string{testKind + "=GPU-1.display", testKind + "=GPU-1.graphics"}, true},
		"GPU-3": {[]string{testKind + "=GPU-3.video"}, false},
	} {
		if d := devices[id]; !slices.Equal(d.CDINames, want.names) || d.Fault.None() == want.faulty {
			t.Errorf("%s has CDI devices %v and fault %v, want %v", id, d.CDINames, d.Fault, want)
		}
	}
	durable := func(written ...string) bool {
		for _, w := range Wants(resources, inv, func(name string) bool { return slices.Contains(written, name) }) {
			if w.ID == "GPU-0" {
				return w.Ready
			}
		}
		return false
	}
	if first, second := testKind+"=GPU-0.display", testKind+"=GPU-0.graphics"; durable(first) || !durable(first, second) {
		t.Errorf("durable with one variant: %t, with both: %t", durable(first), durable(first, second))
	}
}

// A draining device keeps its features, even after a restart of the agent, because the kubelet may still allocate a
// device that it selected before the withdrawal.
func TestDrainingDeviceKeepsFeatures(t *testing.T) {
	inv := partitioned(nil)
	ruled := Policy{Rules: Rules{{Select: Selector{UUID: []string{"GPU-0"}}, Name: "nvidia.com/render", Features: []string{"graphics"}}}}
	stages := []stage{{inv, Plan(inv, testKind, ruled)}, {inv, Plan(inv, testKind, Policy{})}}
	offered := 0
	for _, r := range after(t, []string{"render GPU-0"}, stages[0], stages[1]) {
		for _, d := range r.Devices {
			offered++
			want := testKind + "=GPU-0"
			if r.Name != GPUResource {
				want += ".graphics"
			}
			if !slices.Equal(d.CDINames, []string{want}) {
				t.Errorf("%s of %s has CDI devices %v, want %s", d.ID, r.Name, d.CDINames, want)
			}
		}
	}
	if offered == 0 {
		t.Error("no device is offered")
	}
	saved := Start(nil, true, time.Unix(1e9, 0))
	saved.entries = []Entry{{Key: Key{"nvidia.com/render", "GPU-0"}, State: StateDraining, Features: "graphics"}}
	kept := saved.Save()
	restarted := Offers(nil, Start(&kept, true, time.Unix(1e9, 0)), inv, testKind)
	if len(restarted) != 1 || !slices.Equal(restarted[0].Devices[0].CDINames, []string{testKind + "=GPU-0.graphics"}) {
		t.Errorf("after a restart, the draining device is offered as %+v", restarted)
	}
}

func TestDeviceOfCDI(t *testing.T) {
	for name, want := range map[string]string{
		testKind + "=GPU-0": "GPU-0", testKind + "=GPU-0.graphics": "GPU-0", testKind + "=MIG-0.x.y": "MIG-0",
		"GPU-0.graphics": "GPU-0", testKind + "=monitor": "monitor", "": "", "=": "", ".": "",
	} {
		if got := DeviceOfCDI(name); got != want {
			t.Errorf("DeviceOfCDI(%q) = %q, want %q", name, got, want)
		}
	}
}
