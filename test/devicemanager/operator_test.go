package devicemanager

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/platform"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// statusFiles returns the content of the status files of the GPU Operator's validator, by name.
func (n *node) statusFiles(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.root, platform.Validations))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(n.root, platform.Validations, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(content)
	}
	return files
}

// The agent replaces the GPU Operator's device plugin and GPU feature discovery. It finds the driver and the device
// nodes of the driver container, and finds them again after the container was gone. It sets the labels that the
// operator reads. It changes neither the labels that the operator sets nor the validator's status files.
func TestOperatorNode(t *testing.T) {
	t.Parallel()
	n := newHost(t)
	if err := platform.Operator(n.root, simdriver.H100x8()); err != nil {
		t.Fatal(err)
	}
	before := n.statusFiles(t)
	if err := os.Mkdir(n.nfdDir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "labels: {place: nfd}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.awaitLabels(t, "nvidia.com/mig.capable=true\n", "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n", "nvidia.com/gpu.count=8\n")
	n.requireNoLabels(t, "nvidia.com/gpu.present", "nvidia.com/gpu.deploy.", "nvidia.com/mig.config", "nvidia.com/gpu-driver-upgrade")
	if s := n.statusText(t, "-o", "yaml"); !strings.Contains(s, "/run/nvidia/driver") {
		t.Errorf("the status lacks the driver root:\n%s", s)
	}

	pod := newPod("worker", 2)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	request, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	nodes := strings.Join(n.injectedNodes(t, request), " ")
	if len(request.cdiDevices) != 2 || !strings.Contains(nodes, "/dev/nvidiactl") || strings.Contains(nodes, "/run/nvidia") {
		t.Errorf("the pod gets CDI devices %v, which inject the nodes %s", request.cdiDevices, nodes)
	}

	// While the operator replaces the driver container, the root of that container is gone. The agent needs no restart.
	container := filepath.Join(n.root, platform.DriverContainer)
	if err := os.Rename(container, container+".away"); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 0)
	if err := os.Rename(container+".away", container); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 8)

	if after := n.statusFiles(t); !maps.Equal(after, before) {
		t.Errorf("the status files of the validator changed from %v to %v", before, after)
	}
}
