package cdi_test

import (
	"os"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// All GPUs of a platform have its device nodes. If a required node is missing they are faulty, and without libcuda no
// spec can be written.
func TestInspectPlatform(t *testing.T) {
	const libcuda = "usr/lib/wsl/lib/libcuda.so.1"
	n := newNode(t)
	n.device(t, "dev/dxg", 10, 127)
	n.write(t, libcuda, "")
	inv := &gpu.Inventory{Platform: gpu.WSL2, GPUs: []gpu.GPU{{UUID: "GPU-a", Minor: gpu.MinorUnknown}, {UUID: "GPU-b", Minor: gpu.MinorUnknown}}}
	inspect := func() (cdi.Parts, error) {
		return cdi.Inspect(n.root(), host.DriverRoot{}, inv, nil)
	}
	parts, err := inspect()
	if err != nil || len(parts.GPUs["GPU-a"]) != 1 || parts.GPUs["GPU-b"][0].Path != "/dev/dxg" || len(parts.Faults) > 0 {
		t.Errorf("got %+v, %v", parts, err)
	}
	if numbers := parts.DeviceNumbers(); len(numbers) > 0 {
		t.Errorf("device numbers %v do not identify a GPU", numbers)
	}
	if err := os.Remove(n.path(libcuda)); err != nil {
		t.Fatal(err)
	}
	if _, err := inspect(); err == nil || !strings.Contains(err.Error(), "libcuda.so.1") {
		t.Errorf("without libcuda: %v", err)
	}
	if err := os.Remove(n.path("dev/dxg")); err != nil {
		t.Fatal(err)
	}
	parts, err = inspect()
	if f := parts.Faults["GPU-b"]; err != nil || f.Code != gpu.FaultDeviceNode || !strings.Contains(f.Message, "/dev/dxg") || len(parts.GPUs) > 0 {
		t.Errorf("without the device node: %+v, %v", parts, err)
	}
	n.write(t, "dev/dxg", "")
	parts, err = inspect()
	if f := parts.Faults["GPU-b"]; err != nil || f.Code != gpu.FaultDeviceNode || !strings.Contains(f.Message, "no character device /dev/dxg") {
		t.Errorf("with a regular file in its place: %+v, %v", parts, err)
	}
	inv.Platform = "unknown"
	if _, err := inspect(); err == nil {
		t.Error("an unknown platform is inspected")
	}
}

// A file that a CSV file lists as a device node, but that is not one, is skipped. The GPU has a fault only if a
// required node is missing.
func TestInspectJetsonSkipsOtherFiles(t *testing.T) {
	n := newNode(t)
	n.device(t, "dev/nvmap", 10, 100)
	n.device(t, "dev/nvhost-ctrl-gpu", 240, 1)
	n.write(t, "dev/nvhost-list", "")
	n.library(t, "tegra/libcuda.so.1.1", "libcuda.so.1")
	n.write(t, "etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv",
		"dev, /dev/nvmap\ndev, /dev/nvhost-*\nlib, /"+libDir+"tegra/libcuda.so.1.1\n")
	inv := &gpu.Inventory{Platform: gpu.Jetson, GPUs: []gpu.GPU{{UUID: "GPU-a", Minor: gpu.MinorUnknown}}}
	parts, err := cdi.Inspect(n.root(), host.DriverRoot{}, inv, nil)
	if err != nil || len(parts.GPUs["GPU-a"]) != 2 || len(parts.Faults) > 0 {
		t.Errorf("got %+v, %v", parts, err)
	}
	if err := os.Remove(n.path("dev/nvmap")); err != nil {
		t.Fatal(err)
	}
	n.write(t, "dev/nvmap", "")
	parts, err = cdi.Inspect(n.root(), host.DriverRoot{}, inv, nil)
	if f := parts.Faults["GPU-a"]; err != nil || f.Code != gpu.FaultDeviceNode || !strings.Contains(f.Message, "character device /dev/nvmap not found") {
		t.Errorf("with a regular file in place of a required node: %+v, %v", parts, err)
	}
}
