package main

import (
	"strings"
	"testing"
)

// The policies and the controller use the names and units in the values. If Kubernetes is older than 1.36 or
// dra.enabled is not set, helm fails and prints the requirement.
func TestVCUDA(t *testing.T) {
	const enabled = `vcuda={"enabled":true,"domain":"tencent.com","memoryUnit":"256Mi","namespaceSelector":{"matchLabels":{"gpus":"parts"}}}`
	out, err := helm(t.Context(), "template", "gpucdi", "--kube-version", "1.36.0", "--set", "dra.enabled=true,openshift.enabled=true", "--set-json", enabled)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"kind: MutatingAdmissionPolicyBinding", `"tencent.com/vcuda-core"`, "string(variables.memory[i] * 256)", "gpus: parts",
		"in units of 256Mi", `args: [templates, --dra-driver-name, "gpu.nvidia.com", --device-class, "gpu.nvidia.com"`,
		"resources: [resourceclaimtemplates], verbs: [list, create, delete]", "name: gpucdi-vcuda-scc",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
	for _, tc := range []struct{ version, dra, want string }{
		{"1.35.9", "dra.enabled=true", "requires Kubernetes 1.36. On older clusters, equal shares are available instead"},
		{"1.36.0", "dra.enabled=false", "vcuda.enabled requires dra.enabled"},
	} {
		_, err := helm(t.Context(), "template", "gpucdi", "--kube-version", tc.version, "--set", tc.dra, "--set", "vcuda.enabled=true")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Kubernetes %s, %s: error %v", tc.version, tc.dra, err)
		}
	}
	if out, err := helm(t.Context(), "template", "gpucdi", "--kube-version", "1.36.0", "--set", "dra.enabled=true"); err != nil || strings.Contains(out, "vcuda") {
		t.Errorf("without vcuda.enabled: error %v\n%s", err, out)
	}
}
