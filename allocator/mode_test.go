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
