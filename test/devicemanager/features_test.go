package devicemanager

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

const (
	graphicsResource v1.ResourceName = "nvidia.com/gpu-graphics"
	graphicsRule                     = "resources: [{select: {index: [0]}, name: nvidia.com/gpu-graphics, features: [graphics, display]}]"
)

// A rule with features adds them to the containers of its resource. A pod keeps its features when the rule is removed,
// also after restarts of the agent and the kubelet and a driver upgrade.
func TestRuleFeatures(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, graphicsRule)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitResources(t, resourceCounts{graphicsResource: "1 of 1", gpuResource: "7 of 7"})
	gpu := n.uuids()[0]
	pod := podWith("renders", graphicsResource, 1)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		r, err := k.start(t.Context(), pod)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if want := []string{"gpucdi.dev/gpu=" + gpu + ".display", "gpucdi.dev/gpu=" + gpu + ".graphics"}; !slices.Equal(r.cdiDevices, want) {
			t.Errorf("%s: CDI devices %v, want %v", when, r.cdiDevices, want)
		}
		if nodes := n.injectedNodes(t, r); !hasGraphics(nodes) || !slices.Contains(nodes, "/dev/nvidia-uvm") {
			t.Errorf("%s: nodes %v", when, nodes)
		}
	}
	check("with the rule")
	plain := newPod("computes", 1)
	if err := k.admit(plain); err != nil {
		t.Fatal(err)
	}
	if r, err := k.start(t.Context(), plain); err != nil || hasGraphics(n.injectedNodes(t, r)) {
		t.Errorf("the pod without the feature has %v, %v", n.injectedNodes(t, r), err)
	}

	n.configure(t)
	k.awaitResources(t, resourceCounts{graphicsResource: "0 of 1", gpuResource: "7 of 8"})
	check("without the rule")
	n.killAgent(t)
	k = k.restart(t, 2)
	n.startAgent(t)
	k.awaitResources(t, resourceCounts{graphicsResource: "0 of 1", gpuResource: "7 of 8"})
	check("after restarts")
	if err := n.driver.Upgrade("590.44.01"); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); !n.variantsHave(t, "590.44.01"); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatal("the CDI spec of the graphics variants still has the files of the previous driver")
		}
	}
	k.awaitResources(t, resourceCounts{graphicsResource: "0 of 1", gpuResource: "7 of 8"})
	check("after an upgrade of the driver")
	k.removePod(pod)
	k.awaitResources(t, resourceCounts{gpuResource: "8 of 8"})
}

// If the driver lacks a feature, only devices of rules with that feature are unhealthy. Without video, no device is
// unhealthy, because the default features include video only if the driver has it.
func TestMissingFeature(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	var restore []func() error
	for _, pattern := range []string{"libEGL_nvidia.so.*.*", "libnvcuvid.so.*.*"} {
		found, err := filepath.Glob(filepath.Join(n.root, simdriver.LibraryDir, pattern))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		if err := os.Rename(found[0], found[0]+".away"); err != nil {
			t.Fatal(err)
		}
		restore = append(restore, func() error { return os.Rename(found[0]+".away", found[0]) })
	}
	n.configure(t, graphicsRule)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitResources(t, resourceCounts{graphicsResource: "0 of 1", gpuResource: "7 of 7"})
	d := n.awaitDevice(t, n.uuids()[0], "config")
	if !strings.Contains(d.Fault.Message, "feature graphics: libEGL_nvidia.so.0") {
		t.Errorf("the reason is %q", d.Fault.Message)
	}
	var errs []error
	for _, f := range restore {
		errs = append(errs, f())
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	k.awaitResources(t, resourceCounts{graphicsResource: "1 of 1", gpuResource: "7 of 7"})
}

// variantsHave reports whether the CDI spec of the graphics variants contains a text.
func (n *node) variantsHave(t *testing.T, text string) bool {
	t.Helper()
	return strings.Contains(n.specs(t)[filepath.Join(n.cdiDir, "gpucdi.dev-gpu-graphics.json")], text)
}

func hasGraphics(nodes []string) bool {
	isDRM := func(path string) bool { return strings.HasPrefix(path, "/dev/dri/render") }
	return slices.ContainsFunc(nodes, isDRM) && slices.Contains(nodes, "/dev/nvidia-modeset")
}
