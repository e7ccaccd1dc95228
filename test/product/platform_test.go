package product_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/platform"
	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// On WSL2 and Jetson, as elsewhere, generate names the GPUs by index and ID, list shows them, and no check of doctor
// fails.
func TestPlatformCommands(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range platform.All() {
		t.Run(p.Name, func(t *testing.T) {
			root := t.TempDir()
			driver, err := p.Install(root, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			h := host{binary: binary, root: root, driver: driver}
			requireDevices(t, h, append(slices.Clone(p.IDs), "0", "all")...)
			if list := h.must(t, "list"); !strings.Contains(list, p.IDs[0]) {
				t.Errorf("list lacks %s:\n%s", p.IDs[0], list)
			}
			requireNoFailure(t, h, "driver files and device nodes found")
		})
	}
}

// The driver worker uses the device nodes in a driver container's /dev if the node's /dev has none.
func TestDriverContainerDevices(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	profile := simdriver.GTX1060x2()
	h := host{binary: binary, root: t.TempDir()}
	if err := platform.Operator(h.root, profile); err != nil {
		t.Fatal(err)
	}
	requireDevices(t, h, "0", "1", profile.GPUs[0].UUID, profile.GPUs[1].UUID, "all")
	requireNoFailure(t, h, "libraries and all device nodes found")

	// The driver worker also executes nvidia-smi with these device nodes, to set time slices.
	container := filepath.Join(h.root, platform.DriverContainer)
	smi := exec.Command(filepath.Join(filepath.Dir(binary), "gpucdi-nvml"), "--devices", filepath.Join(container, "dev"),
		filepath.Join(container, "usr/bin/nvidia-smi"), "-L")
	smi.Env = []string{"LD_PRELOAD=" + filepath.Join(container, simdriver.LibraryDir, "libnvidia-ml.so.1")}
	if out, err := smi.CombinedOutput(); err != nil || !strings.Contains(string(out), profile.GPUs[1].UUID) {
		t.Errorf("nvidia-smi with the device nodes of the driver container: %v\n%s", err, out)
	}
}

// requireDevices checks that generate writes at least these devices.
func requireDevices(t *testing.T, h host, names ...string) {
	t.Helper()
	var spec specs.Spec
	if err := json.Unmarshal([]byte(h.must(t, "generate", "--format", "json", "--names", "index,uuid")), &spec); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !slices.ContainsFunc(spec.Devices, func(d specs.Device) bool { return d.Name == name && len(d.ContainerEdits.DeviceNodes) > 0 }) {
			t.Errorf("the spec lacks device %s with nodes: %+v", name, spec.Devices)
		}
	}
}

// requireNoFailure checks that no check of doctor fails on a host without Kubernetes, and that a finding contains a text.
func requireNoFailure(t *testing.T, h host, finding string) {
	t.Helper()
	code, out, errs := h.run(t, "doctor")
	if code != 0 || strings.Contains(strings.ToLower(out), "fail") || !strings.Contains(out, finding) {
		t.Errorf("doctor exited with %d, want no failure and %q:\n%s%s", code, finding, out, errs)
	}
}

// operatorValues are the values of the GPU Operator's chart that docs/gpu-operator.md sets. Each is the path of a field
// in the Go type ClusterPolicySpec. They are copied, because no version of the operator's module can be imported.
var operatorValues = []string{
	"devicePlugin.enabled", "gfd.enabled", "toolkit.enabled", "dcgm.enabled", "dcgmExporter.enabled", "migManager.enabled",
}

func TestOperatorValues(t *testing.T) {
	const section = "Replace the device plugin and GPU feature discovery"
	for _, title := range []string{section, "Without the toolkit"} {
		blocks, err := docs.Blocks(t.Context(), "docs/gpu-operator.md", title, "yaml")
		if err != nil || len(blocks) == 0 {
			t.Fatalf("section %q has no values: %v", title, err)
		}
		for _, block := range blocks {
			var values map[string]map[string]bool
			if err := yaml.UnmarshalStrict([]byte(block), &values); err != nil {
				t.Fatal(err)
			}
			for operand, fields := range values {
				for field, enabled := range fields {
					if name := operand + "." + field; !slices.Contains(operatorValues, name) || enabled {
						t.Errorf("section %q sets %s to %t", title, name, enabled)
					}
				}
			}
		}
	}
}
