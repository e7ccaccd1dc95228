package simdriver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// multiarch is the multiarch tuple, which names the library directory on Debian.
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// LibraryDir is the library directory, relative to the root.
var LibraryDir = filepath.Join("usr/lib", multiarch)

// sonames are the SONAMEs of the driver's libraries, by file name without
// ".so.<version>". Empty: the SONAME is the file name with the driver version.
var sonames = map[string]string{
	"libcuda":                   "libcuda.so.1",
	"libcudadebugger":           "libcudadebugger.so.1",
	"libnvcuvid":                "libnvcuvid.so.1",
	"libnvidia-allocator":       "libnvidia-allocator.so.1",
	"libnvidia-cfg":             "libnvidia-cfg.so.1",
	"libnvidia-eglcore":         "",
	"libnvidia-encode":          "libnvidia-encode.so.1",
	"libnvidia-fbc":             "libnvidia-fbc.so.1",
	"libnvidia-glcore":          "",
	"libnvidia-glsi":            "",
	"libnvidia-glvkspirv":       "",
	"libnvidia-gpucomp":         "",
	"libnvidia-gtk3":            "",
	"libnvidia-ml":              "libnvidia-ml.so.1",
	"libnvidia-ngx":             "libnvidia-ngx.so.1",
	"libnvidia-nvvm":            "libnvidia-nvvm.so.4",
	"libnvidia-opencl":          "libnvidia-opencl.so.1",
	"libnvidia-opticalflow":     "libnvidia-opticalflow.so.1",
	"libnvidia-pkcs11":          "",
	"libnvidia-pkcs11-openssl3": "",
	"libnvidia-present":         "",
	"libnvidia-ptxjitcompiler":  "libnvidia-ptxjitcompiler.so.1",
	"libnvidia-rtcore":          "",
	"libnvidia-sandboxutils":    "libnvidia-sandboxutils.so.1",
	"libnvidia-tileiras":        "",
	"libnvidia-tls":             "",
	"libnvidia-vksc-core":       "libnvidia-vksc-core.so.1",
	"libnvidia-wayland-client":  "",
	"libnvoptix":                "libnvoptix.so.1",
	"libEGL_nvidia":             "libEGL_nvidia.so.0",
	"libGLESv1_CM_nvidia":       "libGLESv1_CM_nvidia.so.1",
	"libGLESv2_nvidia":          "libGLESv2_nvidia.so.2",
	"libGLX_nvidia":             "libGLX_nvidia.so.0",
	"vdpau/libvdpau_nvidia":     "libvdpau_nvidia.so.1",
}

// links are the symlinks that driver packages create in addition to those with the name of a SONAME.
var links = map[string]string{
	"libcuda.so":                  "libcuda.so.1",
	"libGLX_indirect.so.0":        "libGLX_nvidia.so.0",
	"libnvcuvid.so":               "libnvcuvid.so.1",
	"libnvidia-allocator.so":      "libnvidia-allocator.so.1",
	"libnvidia-cfg.so":            "libnvidia-cfg.so.1",
	"libnvidia-encode.so":         "libnvidia-encode.so.1",
	"libnvidia-fbc.so":            "libnvidia-fbc.so.1",
	"libnvidia-ml.so":             "libnvidia-ml.so.1",
	"libnvidia-nvvm.so":           "libnvidia-nvvm.so.4",
	"libnvidia-opticalflow.so":    "libnvidia-opticalflow.so.1",
	"libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
}

// otherVersions are the SONAMEs of libraries whose version is not the driver's, by
// file name.
var otherVersions = map[string]string{
	"libnvidia-nvvm70.so.4":           "libnvidia-nvvm70.so.4",
	"libnvidia-egl-gbm.so.1.1.2":      "libnvidia-egl-gbm.so.1",
	"libnvidia-egl-wayland.so.1.1.20": "libnvidia-egl-wayland.so.1",
	"libnvidia-egl-wayland2.so.1.0.0": "libnvidia-egl-wayland2.so.1",
	"libnvidia-egl-xcb.so.1.0.3":      "libnvidia-egl-xcb.so.1",
	"libnvidia-egl-xlib.so.1.0.3":     "libnvidia-egl-xlib.so.1",
}

// texts are the driver's config and data files for other programs, by path.
var texts = map[string]string{
	"etc/OpenCL/vendors/nvidia.icd":                                 "libnvidia-opencl.so.1\n",
	"usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf":         "Section \"OutputClass\"\n\tIdentifier \"nvidia\"\n\tMatchDriver \"nvidia-drm\"\n\tDriver \"nvidia\"\nEndSection\n",
	"usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json": icd("libnvidia-egl-wayland2.so.1"),
	"usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json":  icd("libnvidia-egl-wayland.so.1"),
	"usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json":      icd("libnvidia-egl-gbm.so.1"),
	"usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json":      icd("libnvidia-egl-xcb.so.1"),
	"usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json":     icd("libnvidia-egl-xlib.so.1"),
	"usr/share/glvnd/egl_vendor.d/10_nvidia.json":                   icd("libEGL_nvidia.so.0"),
	"usr/share/nvidia/nvoptix.bin":                                  "simulated OptiX weights\n",
	"usr/share/vulkan/icd.d/nvidia_icd.json":                        icd("libGLX_nvidia.so.0"),
	"usr/share/vulkan/implicit_layer.d/nvidia_layers.json":          `{"file_format_version": "1.0.0", "layer": {"name": "VK_LAYER_NV_optimus", "library_path": "libGLX_nvidia.so.0"}}` + "\n",
}

func icd(library string) string {
	return fmt.Sprintf(`{"file_format_version": "1.0.0", "ICD": {"library_path": %q}}`+"\n", library)
}

// xorgModules is the module directory of the X server.
const xorgModules = "usr/lib/xorg/modules"

var (
	programs  = append([]string{"nvidia-debugdump", "nvidia-persistenced", "nvidia-xconfig"}, mpsPrograms...)
	firmwares = []string{"gsp_ga10x.bin", "gsp_tu10x.bin"}
)

// tree is the driver's files below a root. objects is the directory of the compiled objects.
type tree struct{ root, objects string }

func (t tree) path(elem ...string) string {
	return filepath.Join(append([]string{t.root}, elem...)...)
}

// library returns the path of libnvidia-ml.
func (t tree) library(version string) string {
	return t.path(LibraryDir, "libnvidia-ml.so."+version)
}

// checkLinks refuses a root in which a directory of the driver is an absolute
// symlink, which would resolve to this machine's own files.
func (t tree) checkLinks() error {
	for _, dir := range []string{LibraryDir, "usr/bin", "usr/share", xorgModules, "etc/OpenCL", "lib/firmware/nvidia", "proc/driver", "sys/bus/pci/devices", "sys/devices", "sys/module", "dev"} {
		for at := dir; at != "."; at = filepath.Dir(at) {
			target, err := os.Readlink(t.path(at))
			if err == nil && filepath.IsAbs(target) {
				return fmt.Errorf("symlink %s leads out of the root to %s; make it relative", t.path(at), target)
			}
		}
	}
	return nil
}

// install writes the files of a driver version. The library contains its state
// when it becomes visible.
func (t tree) install(version, state string) error {
	stub, err := os.ReadFile(filepath.Join(t.objects, "stub"))
	if err != nil {
		return err
	}
	for name, soname := range sonames {
		if err := t.installLibrary(name, soname, version, state, stub); err != nil {
			return fmt.Errorf("installing %s: %w", name, err)
		}
	}
	for link, target := range links {
		if err := symlink(target, t.path(LibraryDir, link)); err != nil {
			return err
		}
	}
	for file, soname := range otherVersions {
		if err := replace(t.path(LibraryDir, file), stubNamed(stub, soname), 0o755); err != nil {
			return err
		}
		if file != soname {
			if err := symlink(file, t.path(LibraryDir, soname)); err != nil {
				return err
			}
		}
	}
	if err := t.installGraphics(version, stub); err != nil {
		return fmt.Errorf("installing graphics and display files: %w", err)
	}
	for _, name := range firmwares {
		data := []byte("simulated firmware of " + version + "\n")
		if err := replace(t.path("lib/firmware/nvidia", version, name), data, 0o644); err != nil {
			return err
		}
	}
	return t.installPrograms(version)
}

func (t tree) installLibrary(name, soname, version, state string, stub []byte) error {
	file := name + ".so." + version
	data := stubNamed(stub, filepath.Base(file))
	if soname != "" {
		data = stubNamed(stub, soname)
	}
	if name == "libcuda" || name == "libnvidia-ml" {
		var err error
		if data, err = os.ReadFile(filepath.Join(t.objects, name)); err != nil {
			return err
		}
	}
	if name == "libnvidia-ml" {
		tail, err := slot(state)
		if err != nil {
			return err
		}
		data = append(append(data, make([]byte, settingsSize)...), tail...)
	}
	if err := replace(t.path(LibraryDir, file), data, 0o755); err != nil || soname == "" {
		return err
	}
	return symlink(filepath.Base(file), t.path(LibraryDir, filepath.Dir(name), soname))
}

func (t tree) installGraphics(version string, stub []byte) error {
	for name, text := range texts {
		if err := replace(t.path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := mkdirs(t.path(LibraryDir, "gbm")); err != nil {
		return err
	}
	if err := symlink("../libnvidia-allocator.so.1", t.path(LibraryDir, "gbm/nvidia-drm_gbm.so")); err != nil {
		return err
	}
	server := "libglxserver_nvidia.so"
	if err := replace(t.path(xorgModules, "drivers/nvidia_drv.so"), stubNamed(stub, "nvidia_drv.so"), 0o755); err != nil {
		return err
	}
	if err := replace(t.path(xorgModules, "extensions", server+"."+version), stubNamed(stub, server), 0o755); err != nil {
		return err
	}
	return symlink(server+"."+version, t.path(xorgModules, "extensions", server))
}

func (t tree) installPrograms(version string) error {
	for _, name := range append([]string{"nvidia-smi"}, programs...) {
		object := "program"
		if name == "nvidia-smi" || (slices.Contains(mpsPrograms, name) && supportsMPS(version)) {
			object = name
		}
		data, err := os.ReadFile(filepath.Join(t.objects, object))
		if err != nil {
			return err
		}
		if err := replace(t.path("usr/bin", name), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the files of a driver version; all includes the files that all versions
// share: symlinks, programs, libraries with other versions, config files, and the state file.
func (t tree) remove(version string, all bool) error {
	paths := []string{t.path(xorgModules, "extensions/libglxserver_nvidia.so."+version)}
	for name, soname := range sonames {
		paths = append(paths, t.path(LibraryDir, name+".so."+version))
		if all && soname != "" {
			paths = append(paths, t.path(LibraryDir, filepath.Dir(name), soname))
		}
	}
	if all {
		for link := range links {
			paths = append(paths, t.path(LibraryDir, link))
		}
		for _, name := range append([]string{"nvidia-smi"}, programs...) {
			paths = append(paths, t.path("usr/bin", name))
		}
		for file, soname := range otherVersions {
			paths = append(paths, t.path(LibraryDir, file), t.path(LibraryDir, soname))
		}
		for name := range texts {
			paths = append(paths, t.path(name))
		}
		paths = append(paths, t.path(LibraryDir, "gbm/nvidia-drm_gbm.so"),
			t.path(xorgModules, "drivers/nvidia_drv.so"), t.path(xorgModules, "extensions/libglxserver_nvidia.so"),
			t.path(stateFile))
	}
	for _, path := range append(paths, t.path("lib/firmware/nvidia", version)) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// mkdirs creates a world-readable directory.
func mkdirs(path string) error {
	return os.MkdirAll(path, 0o755) //nolint:gosec // see above
}

// replace writes a file atomically. Processes that have the old file open keep it.
func replace(path string, data []byte, mode os.FileMode) error {
	if err := mkdirs(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".nvsim-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(f.Name(), mode); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func symlink(target, path string) error {
	temporary := path + ".nvsim-new"
	if err := os.Remove(temporary); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// sysfsBus returns a PCI bus ID in sysfs format: "0000:18:00.0" for NVML's
// "00000000:18:00.0", in lower case.
func sysfsBus(bus string) string { return strings.ToLower(strings.TrimPrefix(bus, "0000")) }
