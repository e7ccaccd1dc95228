package doctor

import (
	"strings"
	"testing"
	"time"

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
		want string // verdict and part of the message; empty for no finding
	}{
		"disabled":   {status.Node{}, ""},
		"all free":   {status.Node{DRA: registered(status.DRA{}), Devices: devices[:1]}, "pass all 1 would move immediately"},
		"some held":  {status.Node{DRA: registered(status.DRA{}), Devices: devices}, "pass 1 would move immediately, and 1 when these pods end: default/train"},
		"refused":    {status.Node{DRA: &status.DRA{Error: "refused"}}, "fail is not registered with the kubelet: refused"},
		"conflict":   {status.Node{DRA: registered(status.DRA{Error: "another process"})}, "fail gpu.nvidia.com is registered with an error: another process"},
		"no slices":  {status.Node{DRA: registered(status.DRA{Slices: status.Slices{Error: "forbidden"}})}, "fail not up to date: forbidden"},
		"foreign":    {status.Node{DRA: registered(status.DRA{Slices: status.Slices{Foreign: []string{"x"}}})}, "fail another program wrote ResourceSlices of this driver and node: x"},
		"old server": {status.Node{DRA: registered(status.DRA{Slices: status.Slices{Dropped: []string{"taints"}}})}, "warn does not store taints"},
	} {
		e := &examination{status: tc.node}
		found := e.dra(t.Context())
		if tc.want == "" {
			if found != nil {
				t.Errorf("%s: got %+v", name, found)
			}
			continue
		}
		verdict, message, _ := strings.Cut(tc.want, " ")
		if len(found) != 1 || string(found[0].Verdict) != verdict || !strings.Contains(found[0].Message, message) {
			t.Errorf("%s: got %+v, want %s", name, found, tc.want)
		}
	}
}
