package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/status"
)

func TestDRA(t *testing.T) {
	pod := []status.Holder{{Namespace: "default", Pod: "train", Container: "main"}, {Namespace: "default", Pod: "train", Container: "side"}}
	devices := []status.Device{{ID: "GPU-a"}, {ID: "GPU-b", AllocatedTo: pod}, {ID: "GPU-c", State: status.Waiting}}
	registered := func(d status.DRA) *status.DRA {
		d.Driver, d.Registered = "gpu.nvidia.com", time.Unix(1, 0)
		return &d
	}
	for name, tc := range map[string]struct {
		node status.Node
		want string // verdicts and parts of the messages, separated by "; "; empty for no finding
	}{
		"disabled":   {status.Node{}, ""},
		"all free":   {status.Node{DRA: registered(status.DRA{}), Devices: devices[:1]}, "pass all 1 would move immediately"},
		"some held":  {status.Node{DRA: registered(status.DRA{}), Devices: devices}, "pass 1 would move immediately, and 1 when these pods end: default/train"},
		"refused":    {status.Node{DRA: &status.DRA{Error: "refused"}}, "fail is not registered with the kubelet: refused"},
		"conflict":   {status.Node{DRA: registered(status.DRA{Error: "another process"})}, "fail gpu.nvidia.com is registered with an error: another process"},
		"no slices":  {status.Node{DRA: registered(status.DRA{Slices: status.Slices{Error: "forbidden"}})}, "fail not up to date: forbidden"},
		"foreign":    {status.Node{DRA: registered(status.DRA{Slices: status.Slices{Foreign: []string{"x"}}})}, "fail another program wrote ResourceSlices of this driver and node: x"},
		"old server": {status.Node{DRA: registered(status.DRA{Slices: status.Slices{Dropped: []string{"taints"}}}), Devices: devices[:1]}, "warn does not store taints; pass all 1 would move"},
		"in slices":  {status.Node{DRA: registered(status.DRA{}), Devices: []status.Device{{ID: "GPU-a", Resource: "gpu.nvidia.com"}}}, "pass all 1 would move immediately if allocation.mode changed, unless a claim is allocated"},
		"by rule":    {status.Node{DRA: registered(status.DRA{}), Devices: []status.Device{{ID: "GPU-a"}, {ID: "GPU-rule"}}}, "pass all 1 would move immediately"},
	} {
		e := &examination{status: tc.node, snapshot: &driver.Snapshot{Inventory: &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-rule"}}}}}
		e.settings.Resources = allocator.Rules{{Select: allocator.Selector{UUID: []string{"GPU-rule"}}, Mode: allocator.ModeDRA}}
		found := e.dra(t.Context())
		if tc.want == "" {
			if found != nil {
				t.Errorf("%s: got %+v", name, found)
			}
			continue
		}
		wants := strings.Split(tc.want, "; ")
		if len(found) != len(wants) {
			t.Errorf("%s: got %+v, want %q", name, found, wants)
			continue
		}
		for i, want := range wants {
			verdict, message, _ := strings.Cut(want, " ")
			if string(found[i].Verdict) != verdict || !strings.Contains(found[i].Message, message) {
				t.Errorf("%s: got %+v, want %s", name, found[i], want)
			}
		}
	}
}
