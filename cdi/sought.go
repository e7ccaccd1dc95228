package cdi

import (
	"fmt"
	"path"
	"runtime"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Bind is a file that containers get from the host as it is.
type Bind struct {
	NodePath      string // links resolved
	ContainerPath string
}

// sought are the files besides libraries that features come with. None is
// needed by every container, so one that is not installed, or that cannot be named in a spec, is
// left out.
// docs/features.md is held to it.
var sought = []struct {
	feature Feature
	name    string // may be a pattern
	place   place
	sub     string   // the directory below each of the place's
	at      []string // directories of the container, all of them
}{
	{Utility, "nvidia-smi", programs, "", bin},
	{Compute, "nvidia-cuda-mps-control", programs, "", bin},
	{Compute, "nvidia-cuda-mps-server", programs, "", bin},

	{Compute, "nvidia.icd", data, "OpenCL/vendors", []string{"/etc/OpenCL/vendors"}},
	{Graphics, "*nvidia*.json", data, "glvnd/egl_vendor.d", []string{"/usr/share/glvnd/egl_vendor.d"}},
	{Graphics, "*nvidia*.json", data, "egl/egl_external_platform.d", []string{"/usr/share/egl/egl_external_platform.d"}},
	{Graphics, "nvidia_icd.json", data, "vulkan/icd.d", []string{"/usr/share/vulkan/icd.d"}},
	// Fedora and openSUSE keep one for each machine.
	{Graphics, "nvidia_icd." + gnuMachine + ".json", data, "vulkan/icd.d", []string{"/usr/share/vulkan/icd.d"}},
	{Graphics, "nvidia_layers*.json", data, "vulkan/implicit_layer.d", []string{"/usr/share/vulkan/implicit_layer.d"}},
	{Graphics, "nvoptix.bin", data, "nvidia", []string{"/usr/share/nvidia"}},

	{Display, "nvidia-xconfig", programs, "", bin},
	{Display, "nvidia_drv.so", modules, "drivers", below(xorgModules, "drivers")},
	{Display, "libglxserver_nvidia.so", modules, "extensions", below(xorgModules, "extensions")},
	{Display, "*nvidia*.conf", data, "X11/xorg.conf.d", []string{"/usr/share/X11/xorg.conf.d"}},
}

// place is where a driver root keeps one kind of file; the first directory that
// has the file counts.
type place func(root host.DriverRoot, sub string) []string

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

	// xorgModules are where the X servers of Debian and of RHEL load modules from.
	xorgModules = []string{"/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"}
)

// gnuMachine is what GNU calls this machine.
var gnuMachine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

func below(dirs []string, name string) []string {
	joined := make([]string, len(dirs))
	for i, dir := range dirs {
		joined[i] = path.Join(dir, name)
	}
	return joined
}

// findSought finds the files for some features.
func findSought(root host.DriverRoot, features Features) ([]Bind, error) {
	var found []Bind
	for _, s := range sought {
		if !features.Any(s.feature) {
			continue
		}
		paths, err := firstMatches(root, s.place(root, s.sub), s.name)
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", s.name, err)
		}
		for _, file := range paths {
			binds, err := bindsOfSought(root, file, s.at)
			if err != nil {
				return nil, fmt.Errorf("looking for %s: %w", s.name, err)
			}
			found = append(found, binds...)
		}
	}
	return found, nil
}

// bindsOfSought are those of a file into directories, and of the libraries that it names.
func bindsOfSought(root host.DriverRoot, file string, at []string) ([]Bind, error) {
	resolved, err := root.Resolve(file)
	if err != nil {
		return nil, err
	}
	if resolved, err = original(root, resolved); err != nil {
		return nil, err
	}
	if !isPath(root.NodePath(resolved)) || !isFileName(path.Base(file)) {
		return nil, nil
	}
	var binds []Bind
	for _, dir := range at {
		binds = append(binds, Bind{NodePath: root.NodePath(resolved), ContainerPath: path.Join(dir, path.Base(file))})
	}
	named, err := namedLibraries(root, resolved)
	return append(binds, named...), err
}

// maxMatches bounds the files that fit one pattern. Drivers have one or two.
const maxMatches = 32

// firstMatches are the files of that name in the first directory that has one.
func firstMatches(root host.DriverRoot, dirs []string, name string) ([]string, error) {
	for _, dir := range dirs {
		paths, err := root.Glob(path.Join(dir, name))
		if err != nil || len(paths) > 0 {
			return paths[:min(len(paths), maxMatches)], err
		}
	}
	return nil, nil
}
