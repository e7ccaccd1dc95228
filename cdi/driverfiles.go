package cdi

import (
	"fmt"
	"path"
	"runtime"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Bind is a bind mount of a host file.
type Bind struct {
	HostPath      string // symlinks resolved
	ContainerPath string
}

// driverFiles are the files, other than libraries, that belong to a feature. All are optional, so files that are not
// installed, or whose names are not valid in a spec, are skipped. docs/features.md has the same table.
var driverFiles = []struct {
	feature       Feature
	name          string // may be a pattern
	search        searchPath
	sub           string   // subdirectory of each directory in search
	containerDirs []string // the file is mounted into each
}{
	// Manifests for gpu-manager and GKE run it in /usr/local/nvidia/bin.
	{Utility, "nvidia-smi", programs, "", []string{"/usr/bin", "/usr/local/nvidia/bin"}},
	{Compute, "nvidia-cuda-mps-control", programs, "", bin},
	{Compute, "nvidia-cuda-mps-server", programs, "", bin},

	{Compute, "nvidia.icd", data, "OpenCL/vendors", []string{"/etc/OpenCL/vendors"}},
	{Graphics, "*nvidia*.json", data, "glvnd/egl_vendor.d", []string{"/usr/share/glvnd/egl_vendor.d"}},
	{Graphics, "*nvidia*.json", data, "egl/egl_external_platform.d", []string{"/usr/share/egl/egl_external_platform.d"}},
	{Graphics, "nvidia_icd.json", data, "vulkan/icd.d", []string{"/usr/share/vulkan/icd.d"}},
	// Fedora and openSUSE have an ICD file for each architecture.
	{Graphics, "nvidia_icd." + gnuMachine + ".json", data, "vulkan/icd.d", []string{"/usr/share/vulkan/icd.d"}},
	{Graphics, "nvidia_layers*.json", data, "vulkan/implicit_layer.d", []string{"/usr/share/vulkan/implicit_layer.d"}},
	{Graphics, "nvoptix.bin", data, "nvidia", []string{"/usr/share/nvidia"}},

	{Display, "nvidia-xconfig", programs, "", bin},
	{Display, "nvidia_drv.so", modules, "drivers", below(xorgModules, "drivers")},
	{Display, "libglxserver_nvidia.so", modules, "extensions", below(xorgModules, "extensions")},
	{Display, "*nvidia*.conf", data, "X11/xorg.conf.d", []string{"/usr/share/X11/xorg.conf.d"}},
}

// searchPath returns the directories of a driver root that may contain a kind of file, in order of preference.
type searchPath func(root host.DriverRoot, sub string) []string

func programs(root host.DriverRoot, _ string) []string { return root.Programs }

func data(root host.DriverRoot, sub string) []string { return below(root.Data, sub) }

func modules(_ host.DriverRoot, sub string) []string {
	return append(below(xorgModules, sub),
		"/usr/lib/"+gnuMachine+"-linux-gnu/nvidia/xorg", // Ubuntu
		"/usr/lib/nvidia", // Debian
	)
}

var (
	bin = []string{"/usr/bin"}

	// xorgModules are the module directories of the X servers of Debian and RHEL.
	xorgModules = []string{"/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"}
)

// gnuMachine is the CPU part of the GNU target triplet.
var gnuMachine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

// below joins name to each of dirs.
func below(dirs []string, name string) []string {
	joined := make([]string, len(dirs))
	for i, dir := range dirs {
		joined[i] = path.Join(dir, name)
	}
	return joined
}

// findDriverFiles returns the bind mounts for driverFiles of features.
func findDriverFiles(root host.DriverRoot, features Features) ([]Bind, error) {
	var found []Bind
	for _, f := range driverFiles {
		if !features.Any(f.feature) {
			continue
		}
		files, err := firstMatches(root, f.search(root, f.sub), f.name)
		if err != nil {
			return nil, fmt.Errorf("finding %s: %w", f.name, err)
		}
		for _, file := range files {
			binds, err := bindsOfDriverFile(root, file, f.containerDirs)
			if err != nil {
				return nil, fmt.Errorf("finding %s: %w", f.name, err)
			}
			found = append(found, binds...)
		}
	}
	return found, nil
}

// bindsOfDriverFile returns the bind mounts for a file, and for the libraries that it references by path.
func bindsOfDriverFile(root host.DriverRoot, file string, containerDirs []string) ([]Bind, error) {
	resolved, err := root.Resolve(file)
	if err != nil {
		return nil, err
	}
	if resolved, err = unpatchedProgram(root, resolved); err != nil {
		return nil, err
	}
	if !isPath(root.NodePath(resolved)) || !isFileName(path.Base(file)) {
		return nil, nil
	}
	var binds []Bind
	for _, dir := range containerDirs {
		binds = append(binds, Bind{HostPath: root.NodePath(resolved), ContainerPath: path.Join(dir, path.Base(file))})
	}
	libraries, err := referencedLibraries(root, resolved)
	return append(binds, libraries...), err
}

// maxMatches limits the files that match one pattern. Drivers have at most five.
const maxMatches = 32

// firstMatches returns the files that match name in the first directory with a match, at most maxMatches.
func firstMatches(root host.DriverRoot, dirs []string, name string) ([]string, error) {
	for _, dir := range dirs {
		paths, err := root.Glob(path.Join(dir, name))
		if err != nil || len(paths) > 0 {
			return paths[:min(len(paths), maxMatches)], err
		}
	}
	return nil, nil
}
