package main

import (
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

func TestExplain(t *testing.T) {
	earlier := time.Now().Add(-5 * time.Minute)
	fault := gpu.Fault{Code: "xid_79", Message: "XID 79: off the bus", Remedy: "reboot the node", Since: earlier}
	node := status.Node{
		GPUs: []status.GPU{{GPU: gpu.GPU{UUID: "GPU-a", Product: "NVIDIA H100"}}, {GPU: gpu.GPU{UUID: "GPU-b"}}},
		Devices: []status.Device{
			{ID: "GPU-a", Index: "0", GPU: "GPU-a", Resource: "nvidia.com/gpu", State: status.Draining, Since: earlier,
				Reason: "moving to the ResourceSlices", Awaits: "its pods to end",
				AllocatedTo: []status.Holder{{Namespace: "default", Pod: "train", Container: "main"}}},
			{ID: "GPU-a", Index: "0", GPU: "GPU-a", Resource: "gpu.nvidia.com", State: status.Waiting, Since: earlier, Reason: "waits until no pod holds GPU-a"},
			{ID: "GPU-b", Index: "1", GPU: "GPU-b", Resource: "gpu.nvidia.com", Fault: fault, Features: []string{"display", "graphics"},
				AllocatedTo: []status.Holder{{Namespace: "default", Pod: "infer", Container: "main", Claim: "one"}}},
		},
		Excluded: []status.Excluded{{ID: "GPU-c", Index: "2", Rule: "resources[0]"}},
		DRA: &status.DRA{
			Claims:  []status.Claim{{Namespace: "default", Name: "one", Devices: []string{"GPU-b"}, Pods: []string{"infer"}, Prepared: earlier}},
			Waiting: []status.WaitingClaim{{Namespace: "default", Name: "four", Message: "GPU-a: waits until no pod holds it", Since: earlier}},
			Refused: []status.Refusal{{Namespace: "default", Name: "two", Reason: "held", Message: "GPU-b is prepared for claim default/one", At: earlier}},
		},
	}
	for subject, want := range map[string][]string{
		"0": {"GPU 0 (NVIDIA H100, GPU-a), advertised through nvidia.com/gpu", "draining for 5m0s", "moving to the ResourceSlices; waits for its pods to end",
			"default/train/main", "GPU 0 (NVIDIA H100, GPU-a), advertised through gpu.nvidia.com", "waiting for 5m0s"},
		"gpu-b":                         {"unhealthy for 5m0s", "XID 79: off the bus; reboot the node", "default/infer/main, through claim one", "prepared for: claim default/one, 5m0s ago"},
		"gpucdi.dev/gpu=GPU-b.graphics": {"GPU 1 (unknown product, GPU-b)", "features:     those of the node, and display, graphics"},
		"GPU-c":                         {"GPU 2 (GPU-c) is not advertised: excluded by resources[0] of the config"},
		"default/one":                   {"was prepared 5m0s ago, for infer", "GPU 1 (GPU-b): unhealthy"},
		"default/two":                   {"The kubelet's latest call for claim default/two failed 5m0s ago (held): GPU-b is prepared for claim default/one"},
		"default/four":                  {"Claim default/four has waited 5m0s to be prepared: GPU-a: waits until no pod holds it"},
		"default/three":                 {"not prepared on this node"},
	} {
		var out strings.Builder
		if err := explain(&out, node, subject); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
		for _, part := range want {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%s: no %q in\n%s", subject, part, out.String())
			}
		}
	}
	if err := explain(&strings.Builder{}, node, "9"); err == nil || !strings.Contains(err.Error(), `"9"`) {
		t.Errorf("an unknown GPU: error %v", err)
	}
	if err := explain(&strings.Builder{}, status.Node{}, "default/one"); err == nil || !strings.Contains(err.Error(), "dra.enabled") {
		t.Errorf("a claim without DRA: error %v", err)
	}
}
