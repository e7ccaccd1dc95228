package cdi_test

import (
	"os"
	"testing"

	"github.com/gpucdi/gpucdi/cdi"
)

// NixOS patches driver files to reference each other in the Nix store, and keeps the unpatched nvidia-smi in origBin.
func TestInspectNixOS(t *testing.T) {
	const store = "nix/store/aaa-nvidia-x11/"
	n := newNode(t)
	n.library(t, "../../../"+store+"lib/libGLX_nvidia.so."+driverVersion, "libGLX_nvidia.so.0")
	n.library(t, "../../../"+store+"lib/libnvidia-opencl.so."+driverVersion, "libnvidia-opencl.so.1")
	n.write(t, "etc/OpenCL/vendors/nvidia.icd", "/"+store+"lib/libnvidia-opencl.so.1\n")
	n.write(t, "etc/vulkan/icd.d/nvidia_icd.json", `{"ICD": {"library_path": "/`+store+`lib/libGLX_nvidia.so.0", "api_version": "1.4"}}`)
	n.write(t, "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
		`{"layers": [{"name": "a", "library_path": "/`+store+`lib/libGLX_nvidia.so.0"}, {"library_path": "/nix/store/bbb-none/lib/libnone.so.1"}]}`)
	n.write(t, "usr/share/glvnd/egl_vendor.d/10_nvidia.json", `{"ICD": {"library_path": "libEGL_nvidia.so.0"}}`)
	n.write(t, "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", `{"ICD": `)
	n.write(t, store+"bin/nvidia-smi", "#! patched")
	n.write(t, store+"origBin/nvidia-smi", "#!")
	n.remove(t, "usr/bin/nvidia-smi")
	for link, target := range map[string]string{
		"usr/bin/nvidia-smi":                "/" + store + "bin/nvidia-smi",
		store + "lib/libGLX_nvidia.so.0":    "libGLX_nvidia.so." + driverVersion,
		store + "lib/libnvidia-opencl.so.1": "libnvidia-opencl.so." + driverVersion,
	} {
		if err := os.Symlink(target, n.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.Features{cdi.Compute, cdi.Utility, cdi.Graphics})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cdi.Build(cdi.UserKind, inventory, parts, []cdi.NameStrategy{cdi.ByIndex})
	if err != nil {
		t.Fatal(err)
	}
	mounted := map[string]string{}
	for _, m := range spec.ContainerEdits.Mounts {
		if mounted[m.ContainerPath] != "" {
			t.Errorf("duplicate mount at %s", m.ContainerPath)
		}
		mounted[m.ContainerPath] = m.HostPath
	}
	for at, want := range map[string]string{
		"/usr/bin/nvidia-smi":                                       "/" + store + "origBin/nvidia-smi",
		"/" + store + "lib/libnvidia-opencl.so.1":                   "/" + store + "lib/libnvidia-opencl.so." + driverVersion,
		"/" + store + "lib/libGLX_nvidia.so.0":                      "/" + store + "lib/libGLX_nvidia.so." + driverVersion,
		"/nix/store/bbb-none/lib/libnone.so.1":                      "",
		"libEGL_nvidia.so.0":                                        "",
		"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
	} {
		if mounted[at] != want {
			t.Errorf("got mount of %[2]q at %[1]s, want %[3]q", at, mounted[at], want)
		}
	}
}
