package cdi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	driverVersion = "580.95.05"
	libDir        = "usr/lib/x86_64-linux-gnu/"
)

var inventory = &gpu.Inventory{
	Driver: gpu.Driver{Version: driverVersion},
	GPUs: []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Minor: 1, PCIBusID: "0000:18:00.0"},
		{UUID: "GPU-b", Index: 1, Minor: 0, PCIBusID: "0000:2a:00.0"},
	},
}

func TestInspectFindsWhatContainersNeed(t *testing.T) {
	node := newNode(t)
	parts, err := cdi.Inspect(node.root(), node.driver(t), inventory)
	if err != nil {
		t.Fatal(err)
	}
	var sonames []string
	for _, l := range parts.Libraries {
		sonames = append(sonames, l.SONAME)
		if !strings.HasPrefix(l.NodePath, "/"+libDir) || !strings.Contains(l.NodePath, ".so.") {
			t.Errorf("library at %s", l.NodePath)
		}
	}
	want := []string{"libcuda.so.1", "libnvidia-gpucomp.so." + driverVersion, "libnvidia-ml.so.1", "libnvidia-newcomer.so.1", "libnvidia-nvvm70.so.4"}
	if !reflect.DeepEqual(sonames, want) {
		t.Errorf("libraries %v, want %v", sonames, want)
	}
	if want := []cdi.Binary{{NodePath: "/usr/bin/nvidia-smi", Name: "nvidia-smi"}}; !reflect.DeepEqual(parts.Binaries, want) {
		t.Errorf("binaries %v, want %v", parts.Binaries, want)
	}
	wantControl := []cdi.Node{
		{Path: "/dev/nvidia-uvm", Major: 511, Minor: 0},
		{Path: "/dev/nvidia-uvm-tools", Major: 511, Minor: 1},
		{Path: "/dev/nvidiactl", Major: 195, Minor: 255},
		{Path: "/dev/nvidia-modeset", Major: 195, Minor: 254},
	}
	if !reflect.DeepEqual(parts.Control, wantControl) {
		t.Errorf("control nodes %v, want %v", parts.Control, wantControl)
	}
	wantGPUs := map[string][]cdi.Node{
		"GPU-a": {{Path: "/dev/nvidia1", Major: 195, Minor: 1}},
		"GPU-b": {{Path: "/dev/nvidia0", Major: 195, Minor: 0}},
	}
	if !reflect.DeepEqual(parts.GPUs, wantGPUs) || len(parts.Faults) != 0 {
		t.Errorf("GPUs %v, faults %v, want %v", parts.GPUs, parts.Faults, wantGPUs)
	}
}

func TestInspectRefusesWhatIsNotWhole(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, n node)
		want  string
	}{
		{"no libcuda", func(t *testing.T, n node) { n.remove(t, libDir+"libcuda.so."+driverVersion) }, "libcuda.so.1"},
		{"a library that is none", func(t *testing.T, n node) { n.write(t, libDir+"libcuda.so."+driverVersion, "x") }, "damaged"},
		{"uvm not loaded", func(t *testing.T, n node) { n.write(t, "proc/devices", "Character devices:\n195 nvidia\n") }, "modprobe nvidia-uvm"},
		{"a library of another version", func(t *testing.T, n node) {
			n.remove(t, libDir+"libcuda.so."+driverVersion)
			n.library(t, "libcuda.so.570.1", "libcuda.so.1")
		}, "libcuda.so.1 of driver " + driverVersion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			driver := n.driver(t)
			tc.spoil(t, n)
			_, err := cdi.Inspect(n.root(), driver, inventory)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that says %q", err, tc.want)
			}
		})
	}
}

func TestInspectLeavesOneBadGPUOut(t *testing.T) {
	n := newNode(t)
	if err := unix.Mknod(n.path("dev/nvidia1"), unix.S_IFCHR|0o600, int(unix.Mkdev(195, 7))); err != nil {
		t.Fatal(err)
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := parts.GPUs["GPU-a"]; ok || !strings.Contains(parts.Faults["GPU-a"], "195:7") {
		t.Errorf("GPU-a: %v, fault %q", parts.GPUs["GPU-a"], parts.Faults["GPU-a"])
	}
	if _, ok := parts.GPUs["GPU-b"]; !ok {
		t.Errorf("GPU-b is left out too: %q", parts.Faults["GPU-b"])
	}
}

func TestInspectFallsBackToTheHostsNodes(t *testing.T) {
	n := newNode(t)
	n.write(t, "proc/devices", "Character devices:\n  1 mem\n")
	for name, number := range map[string]uint64{
		"nvidiactl": unix.Mkdev(195, 255), "nvidia-uvm": unix.Mkdev(300, 0),
		"nvidia0": unix.Mkdev(195, 0), "nvidia1": unix.Mkdev(195, 1),
	} {
		if err := unix.Mknod(n.path("dev/"+name), unix.S_IFCHR|0o600, int(number)); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory)
	if err != nil {
		t.Fatal(err)
	}
	if parts.Control[0].Major != 300 || len(parts.GPUs) != 2 {
		t.Errorf("got %+v", parts)
	}
}

// node is a host's file tree with a small driver.
type node struct{ dir string }

func newNode(t *testing.T) node {
	t.Helper()
	n := node{t.TempDir()}
	n.write(t, "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n511 other\n")
	n.write(t, "usr/bin/nvidia-smi", "#!")
	n.write(t, "dev/null", "")
	for file, soname := range map[string]string{
		"libcuda.so." + driverVersion:            "libcuda.so.1",
		"libnvidia-ml.so." + driverVersion:       "libnvidia-ml.so.1",
		"libnvidia-gpucomp.so." + driverVersion:  "libnvidia-gpucomp.so." + driverVersion,
		"libnvidia-newcomer.so." + driverVersion: "libnvidia-newcomer.so.1",
		"libnvidia-nvvm70.so.4":                  "libnvidia-nvvm70.so.4",
		"libGLX_nvidia.so." + driverVersion:      "libGLX_nvidia.so.0",
		"libnvidia-glcore.so." + driverVersion:   "libnvidia-glcore.so." + driverVersion,
		"libnvidia-egl-gbm.so.1.1.2":             "libnvidia-egl-gbm.so.1",
		"libnvcuvid.so." + driverVersion:         "libnvcuvid.so.1",
		"libunrelated.so.1":                      "libunrelated.so.1",
	} {
		n.library(t, file, soname)
	}
	if err := os.Symlink("libnvidia-ml.so."+driverVersion, n.path(libDir+"libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n node) path(name string) string { return filepath.Join(n.dir, name) }

func (n node) root() host.Root { return host.NewRoot(n.dir) }

func (n node) driver(t *testing.T) host.DriverRoot {
	t.Helper()
	root, err := host.FindDriver(n.root(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func (n node) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (n node) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(n.path(name)); err != nil {
		t.Fatal(err)
	}
}

// library links an empty shared object: what Inspect reads of a library is in
// its ELF headers.
func (n node) library(t *testing.T, file, soname string) {
	t.Helper()
	n.write(t, libDir+file, "")
	out, err := exec.Command("cc", "-shared", "-nostdlib", "-Wl,-soname,"+soname, "-o", n.path(libDir+file), "-x", "c", "/dev/null").CombinedOutput()
	if err != nil {
		t.Fatalf("linking %s: %v\n%s", file, err, out)
	}
}
