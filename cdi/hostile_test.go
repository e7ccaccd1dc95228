package cdi_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

var allFeatures = cdi.Features{cdi.Compute, cdi.Utility, cdi.Graphics, cdi.Video, cdi.Display}

// mountDirs are the container directories into which driver files are mounted.
var mountDirs = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/bin", "/usr/local/nvidia/bin", "/etc/OpenCL/vendors", "/usr/share/nvidia",
	"/usr/share/glvnd/egl_vendor.d", "/usr/share/egl/egl_external_platform.d", "/usr/share/vulkan/icd.d", "/usr/share/vulkan/implicit_layer.d",
	"/usr/lib/xorg/modules/drivers", "/usr/lib64/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions", "/usr/lib64/xorg/modules/extensions",
	"/usr/share/X11/xorg.conf.d",
}

// strayMounts returns the mounts of parts with unprintable paths, and those that are not files in mountDirs, in their
// subdirectories vdpau and gbm, or in the Nix store.
func strayMounts(t *testing.T, parts cdi.Parts) (stray []string) {
	t.Helper()
	spec, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.ContainerEdits.Mounts {
		dir := strings.TrimSuffix(strings.TrimSuffix(path.Dir(m.ContainerPath), "/vdpau"), "/gbm")
		ok := slices.Contains(mountDirs, dir) || strings.HasPrefix(dir, "/nix/store/")
		if !ok || slices.Contains(mountDirs, m.ContainerPath) || path.Clean(m.ContainerPath) != m.ContainerPath {
			stray = append(stray, fmt.Sprintf("%q at %q", m.HostPath, m.ContainerPath))
		}
		if strings.ContainsFunc(m.HostPath+m.ContainerPath, func(r rune) bool { return r < ' ' || r == 0xfffd }) {
			stray = append(stray, fmt.Sprintf("%q at %q, which is not printable", m.HostPath, m.ContainerPath))
		}
	}
	return stray
}

// The SONAME of a library determines its container path.
func TestInvalidSONAMEs(t *testing.T) {
	for _, soname := range []string{
		"..", ".", "", "/", "/usr/bin/sh", "../../etc/passwd", "lib/", "lib\x01.so.1", "lib\xff.so.1", "lib\n.so.1", "lib/../x.so.1",
	} {
		n := newNode(t)
		const file = "libnvidia-hostile.so." + driverVersion
		n.library(t, file, soname)
		parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
		if err != nil {
			t.Errorf("%q: %v", soname, err)
			continue
		}
		if !slices.ContainsFunc(parts.Libraries, func(l cdi.Library) bool { return l.SONAME == file }) {
			t.Errorf("%q: not mounted under its file name", soname)
		}
		if stray := strayMounts(t, parts); len(stray) > 0 {
			t.Errorf("%q: %v", soname, stray)
		}
	}
}

// Some nodes have libraries of several architectures in one directory.
func TestLibrariesOfOtherMachinesAreSkipped(t *testing.T) {
	n := newNode(t)
	want, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	const class, machine = 4, 0x12 // offsets of fields in the ELF header
	for name, field := range map[string]struct {
		offset int
		value  byte
	}{"class": {class, byte(elf.ELFCLASS32)}, "machine": {machine, byte(elf.EM_386)}} {
		file := libDir + "libnvidia-" + name + ".so." + driverVersion
		n.library(t, path.Base(file), "libnvidia-"+name+".so.1")
		data, err := os.ReadFile(n.path(file))
		if err != nil {
			t.Fatal(err)
		}
		data[field.offset] = field.value
		n.write(t, file, string(data))
	}
	got, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
	if err != nil || !reflect.DeepEqual(got.Libraries, want.Libraries) {
		t.Errorf("got libraries %v, %v, want %v", got.Libraries, err, want.Libraries)
	}
}

// The size of specs is limited.
func TestTooManyDriverFiles(t *testing.T) {
	n := newNode(t)
	for i := range 1500 {
		n.write(t, fmt.Sprintf("usr/share/egl/egl_external_platform.d/%d_nvidia.json", i), "{}")
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, allFeatures)
	if err != nil || len(parts.Binds) > 100 {
		t.Errorf("got %d binds, %v", len(parts.Binds), err)
	}
	for i := range 600 {
		n.library(t, fmt.Sprintf("libnvidia-%d.so.%s", i, driverVersion), fmt.Sprintf("libnvidia-%d.so.1", i))
	}
	if _, err := cdi.Inspect(n.root(), n.driver(t), inventory, allFeatures); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got error %v", err)
	}
}

func TestUnprintableFileNamesAreSkipped(t *testing.T) {
	n := newNode(t)
	for _, invalid := range []string{"\x01", "\xff", "\n"} {
		n.library(t, "libnvidia-"+invalid+".so."+driverVersion, "libnvidia-invalid.so.1")
		n.write(t, "usr/share/egl/egl_external_platform.d/20_nvidia_"+invalid+".json", "{}")
		n.library(t, invalid, "libnvidia-target.so.1")
		if err := os.Symlink(invalid, n.path(fmt.Sprintf("%slibnvidia-%d.so.%s", libDir, invalid[0], driverVersion))); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, allFeatures)
	if err != nil {
		t.Fatal(err)
	}
	if stray := strayMounts(t, parts); len(stray) > 0 {
		t.Error(stray)
	}
	spec, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cdi.AgentFile(t.TempDir(), n.root()).Put(spec); err != nil {
		t.Error(err)
	}
}

// Manifests may reference libraries by any path. Mounts outside the Nix store could hide files of the image.
func TestManifestsWithPathsOutsideNixStore(t *testing.T) {
	for _, name := range []string{
		"/usr/bin/nvidia-smi", "/" + libDir + "libcuda.so." + driverVersion, "/etc/passwd", "/nix/store/../../etc/passwd",
		"/nix/store/x/../../../usr/bin/nvidia-smi", "/nix/store", "/", "/nix/store/a\x01/libx.so",
	} {
		n := newNode(t)
		n.write(t, "etc/passwd", "root")
		n.write(t, "nix/store/a\x01/libx.so", "")
		n.write(t, "etc/OpenCL/vendors/nvidia.icd", name+"\n")
		n.write(t, "etc/vulkan/icd.d/nvidia_icd.json", fmt.Sprintf(`{"ICD": {"library_path": %q}}`, name))
		parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, allFeatures)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if stray := strayMounts(t, parts); len(stray) > 0 {
			t.Errorf("%q: %v", name, stray)
		}
		for _, b := range parts.Binds {
			// The feature utility mounts nvidia-smi at this path.
			if b.ContainerPath == path.Clean(name) && b.ContainerPath != "/usr/bin/nvidia-smi" {
				t.Errorf("unexpected mount at %q", name)
			}
		}
	}
}

// Runtimes resolve symlinks on the node, so Inspect must resolve those of NixOS's unpatched program in the driver root.
func TestUnpatchedProgramStaysInDriverRoot(t *testing.T) {
	n := newNodeWithDriverRoot(t)
	n.write(t, driverDir+"/usr/bin/nvidia-smi", "#!")
	n.write(t, driverDir+"/etc/secret", "the driver's own")
	n.write(t, driverDir+"/usr/origBin/x", "")
	n.link("/etc/secret", driverDir+"/usr/origBin/nvidia-smi")
	if n.inspect(t) == 0 {
		t.Fatal("Inspect failed")
	}
	driver, err := host.FindDriver(n.root(), driverDir, "")
	if err != nil {
		t.Fatal(err)
	}
	parts, err := cdi.Inspect(n.root(), driver, inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range parts.Binds {
		if info, err := os.Lstat(n.path(b.HostPath)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("unexpected mount of %s: %v, %v", b.HostPath, info, err)
		}
	}
}

func TestCSVEntriesThatHideImageDirectories(t *testing.T) {
	for _, line := range []string{
		"dir, /", "dir, /usr", "dir, /usr/lib", "dir, /usr/lib/x86_64-linux-gnu", "dir, /usr/bin", "dir, /etc", "lib, /usr/lib64", "sym, /lib", "dir, /proc", "dir, /usr/local",
	} {
		n := node{t.TempDir()}
		n.device(t, "dev/nvmap", 10, 100)
		for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/bin", "usr/local", "usr/lib64", "etc", "proc", "lib"} {
			n.write(t, dir+"/file", "")
		}
		n.write(t, "etc/nvidia-container-runtime/host-files-for-container.d/a.csv", line+"\n")
		_, err := cdi.BuildClass("nvidia.com/tegra", "tegra", n.root())
		if err == nil || errors.As(err, new(*cdi.AbsentError)) {
			t.Errorf("%q: got error %v", line, err)
		}
	}
}

func TestTooManyCSVEntries(t *testing.T) {
	n := node{t.TempDir()}
	n.device(t, "dev/nvmap", 10, 100)
	n.write(t, "etc/nvidia-container-runtime/host-files-for-container.d/a.csv", strings.Repeat("lib, /usr/lib/x.so\n", 100_000))
	if _, err := cdi.BuildClass("nvidia.com/tegra", "tegra", n.root()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got error %v", err)
	}
}

func TestInvalidDeviceNamesAreSkipped(t *testing.T) {
	n := node{t.TempDir()}
	n.device(t, "dev/nvidia-caps-imex-channels/channel0", 234, 0)
	for _, invalid := range []string{"", "\x01", "\xff", " ", "0=1"} {
		n.device(t, "dev/nvidia-caps-imex-channels/channel"+invalid, 234, 9)
	}
	spec, err := cdi.BuildClass("nvidia.com/imex-channel", cdi.IMEXChannel, n.root())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cdi.ClassFile(cdi.IMEXChannel, t.TempDir(), n.root()).Put(spec); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(devicesOf(spec), "0 /dev/nvidia-caps-imex-channels/channel0;") {
		t.Errorf("got devices %q", devicesOf(spec))
	}
}
