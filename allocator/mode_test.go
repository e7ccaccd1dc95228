package allocator

import (
	"slices"
	"strings"
	"testing"
)

// The mode of a rule overrides the default mode. Devices of the slice keep the resource name of their rule.
func TestPlanOfModes(t *testing.T) {
	for name, tc := range map[string]struct {
		policy Policy
		want   string
	}{
		"device plugin": {Policy{MIG: MIGMixed, Mode: ModeDevicePlugin}, "gpu: GPU-0 GPU-1 GPU-3 GPU-4, mig-1g.5gb: MIG-0, mig-3g.20gb: MIG-1"},
		"DRA":           {Policy{MIG: MIGMixed, Mode: ModeDRA}, "gpu:, slice: GPU-0 GPU-1 MIG-0 MIG-1 GPU-3 GPU-4"},
		"one GPU by DRA": {Policy{Rules: Rules{{Select: Selector{Index: []int{1}}, Name: "example.com/x", Mode: ModeDRA}}, MIG: MIGMixed},
			"gpu: GPU-0 GPU-3 GPU-4, slice: GPU-1, mig-1g.5gb: MIG-0, mig-3g.20gb: MIG-1"},
		"all but one resource by DRA": {Policy{Mode: ModeDRA, MIG: MIGMixed, Rules: Rules{
			{Select: Selector{Index: []int{0}}, Exclude: true}, {Name: GPUResource, Mode: ModeDevicePlugin}}},
			"gpu: GPU-1 GPU-3 GPU-4, slice: MIG-0 MIG-1"},
	} {
		if got := strings.Join(slots(Plan(fleet(), testKind, tc.policy)), ", "); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
	named := Policy{MIG: MIGNone, Mode: ModeDRA, Rules: Rules{{Select: Selector{Index: []int{1}}, Name: "example.com/x"}}}
	var names []string
	for _, d := range Plan(fleet(), testKind, named)[1].Devices {
		names = append(names, d.Resource)
	}
	if want := []string{GPUResource, "example.com/x", GPUResource, GPUResource, GPUResource}; !slices.Equal(names, want) {
		t.Errorf("got resource names %q, want %q", names, want)
	}
}

// Replicas without share require the mode devicePlugin. An excluded device has no mode.
func TestModeOfReplicas(t *testing.T) {
	shared := Rule{Name: GPUResource, Replicas: 2}
	for name, tc := range map[string]struct {
		policy Policy
		ok     bool
	}{
		"device plugin":             {Policy{Rules: Rules{shared}}, true},
		"DRA":                       {Policy{Mode: ModeDRA, Rules: Rules{shared}}, false},
		"DRA by the rule":           {Policy{Rules: Rules{{Name: GPUResource, Replicas: 2, Mode: ModeDRA}}}, false},
		"device plugin by the rule": {Policy{Mode: ModeDRA, Rules: Rules{{Name: GPUResource, Replicas: 2, Mode: ModeDevicePlugin}}}, true},
		"mode only":                 {Policy{Rules: Rules{{Name: GPUResource, Mode: ModeDRA}}}, true},
		"unknown mode":              {Policy{Rules: Rules{{Name: GPUResource, Mode: "DRA"}}}, false},
		"excluded with a mode":      {Policy{Rules: Rules{{Name: GPUResource, Exclude: true, Mode: ModeDRA}}}, false},
	} {
		if err := tc.policy.ValidateRules(); (err == nil) != tc.ok {
			t.Errorf("%s: got error %v, want one: %t", name, err, !tc.ok)
		}
	}
}

func TestExcluded(t *testing.T) {
	inv := partitioned(nil, []string{"1g.10gb", "2g.20gb"}, []string{""}) // the last GPU is in MIG mode and has no MIG devices
	exclude := func(s Selector) Rule { return Rule{Select: s, Exclude: true} }
	for _, tc := range []struct {
		name  string
		mig   MIGStrategy
		rules Rules
		want  string
	}{
		{"a GPU by index", MIGMixed, Rules{exclude(Selector{Index: []int{1}})}, "GPU-1 MIG-1.0 MIG-1.1"},
		{"a GPU without MIG devices", MIGMixed, Rules{exclude(Selector{Index: []int{2}})}, "GPU-2"},
		{"one of its MIG devices is advertised", MIGMixed,
			Rules{{Select: Selector{MIG: "1g.*"}, Name: "x.io/a"}, exclude(Selector{Index: []int{1}})}, "MIG-1.1"},
		{"another rule matches the GPU, not its MIG devices", MIGMixed,
			Rules{{Name: GPUResource, Replicas: 4}, exclude(Selector{Index: []int{1}})}, "GPU-1 MIG-1.0 MIG-1.1"},
		{"MIG devices by profile", MIGMixed, Rules{exclude(Selector{MIG: "*"})}, "GPU-1 MIG-1.0 MIG-1.1"},
		{"the default resource", MIGSingle, Rules{{Name: GPUResource, Exclude: true}}, "GPU-0 GPU-1 GPU-2 MIG-1.0 MIG-1.1"},
		{"the default resource of whole GPUs", MIGMixed, Rules{{Name: GPUResource, Exclude: true}}, "GPU-0"},
		{"without a strategy", MIGNone, Rules{exclude(Selector{Index: []int{1}})}, "GPU-1"},
	} {
		got := Policy{MIG: tc.mig, Rules: tc.rules}.Excluded(inv)
		slices.Sort(got)
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, text, tc.want)
		}
	}
}
