package devicemanager

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/readers"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// With labels.place nfd, the agent writes a feature file, updates it when GPUs or the config change, and removes it
// when the place changes or the driver is uninstalled.
func TestLabelsForNodeFeatureDiscovery(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	if err := os.Mkdir(n.nfdDir, 0o755); err != nil {
		t.Fatal(err)
	}
	const place = "labels: {place: nfd}"
	n.configure(t, place)
	n.startAgent(t)
	n.awaitLabels(t, "nvidia.com/gpu.count=8\n", "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n", "nvidia.com/mig.capable=true\n",
		"nvidia.com/cuda.driver-version.full="+n.driver.State().Version+"\n")

	text, err := os.ReadFile(n.featureFile())
	if err != nil {
		t.Fatal(err)
	}
	found, err := readers.Features(t.Context(), n.nfdDir)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range found {
		if !strings.Contains(string(text), name+"="+value+"\n") {
			t.Errorf("Node Feature Discovery reads %s=%s from\n%s", name, value, text)
		}
	}
	if found["nvidia.com/gpu.count"] != "8" || len(found) != strings.Count(string(text), "\n") {
		t.Errorf("Node Feature Discovery reads %v from\n%s", found, text)
	}

	// The GPUs join a fabric after the first probe.
	if err := n.driver.Update(func(s *simdriver.State) error {
		for i := range s.GPUs {
			s.GPUs[i].Cluster, s.GPUs[i].Clique = "6f8f3c8e0f1a4b2c8d3e4f5a6b7c8d9e", 32766
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	n.awaitLabels(t, "nvidia.com/gpu.clique=6f8f3c8e-0f1a-4b2c-8d3e-4f5a6b7c8d9e.32766\n")

	if _, err := n.driver.Remove(n.uuids()[3]); err != nil {
		t.Fatal(err)
	}
	n.awaitLabels(t, "nvidia.com/gpu.count=7\n")

	n.configure(t, place, "mig: {strategy: mixed}")
	if err := n.driver.Partition(n.uuids()[0], "1g.10gb", "2g.20gb"); err != nil {
		t.Fatal(err)
	}
	n.awaitLabels(t, "nvidia.com/mig.strategy=mixed\n", "nvidia.com/mig-1g.10gb.count=1\n", "nvidia.com/mig-2g.20gb.slices.gi=2\n",
		"nvidia.com/mig-2g.20gb.multiprocessors=")

	n.configure(t, "labels: {place: none}")
	n.awaitNoLabels(t)
	n.configure(t, place)
	n.awaitLabels(t, "nvidia.com/gpu.count=7\n")
	if err := n.driver.Uninstall(); err != nil {
		t.Fatal(err)
	}
	n.awaitNoLabels(t)
}

// The labels of a vGPU have the version and branch of the host's driver, from the vGPU's PCI configuration space.
func TestVirtualGPULabels(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	if err := n.driver.Update(func(s *simdriver.State) error {
		s.GPUs[0].HostDriver = [2]string{"550.127.06", "r550_00"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.nfdDir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "labels: {place: nfd}")
	n.startAgent(t)
	n.awaitLabels(t, "nvidia.com/vgpu.present=true\n", "nvidia.com/vgpu.host-driver-version=550.127.06\n", "nvidia.com/vgpu.host-driver-branch=r550_00\n")
}

func (n *node) featureFile() string { return filepath.Join(n.nfdDir, "gpucdi") }

// awaitLabels waits until the feature file contains all lines.
func (n *node) awaitLabels(t *testing.T, lines ...string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(n.featureFile())
		missing := ""
		for _, line := range lines {
			if !strings.Contains(string(text), line) {
				missing = line
			}
		}
		if err == nil && missing == "" {
			return
		}
		if time.Since(start) > timeout {
			t.Fatalf("feature file lacks %q: %s, %v", missing, text, err)
		}
	}
}

// awaitNoLabels waits until the feature file is removed.
func (n *node) awaitNoLabels(t *testing.T) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		_, err := os.Stat(n.featureFile())
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Since(start) > timeout {
			t.Fatalf("feature file not removed: %v", err)
		}
	}
}
