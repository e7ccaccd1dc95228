package cdi

import (
	"fmt"
	"path"
	"runtime"

	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Bind is a file that containers get from the host as it is.
type Bind struct {
	NodePath      string // links resolved
	ContainerPath string
}

// sought are the files besides libraries that features come with. None is
// needed by every container, so one that is not installed is left out.
// docs/features.md is held to it.
var sought = []struct {
	feature config.Feature
	name    string   // may be a pattern
	from    []string // directories of the driver root; the first that has one counts
	at      []string // directories of the container, all of them
}{
	{config.Utility, "nvidia-smi", programDirs, bin},
	{config.Utility, "nvidia-debugdump", programDirs, bin},
	{config.Compute, "nvidia-cuda-mps-control", programDirs, bin},
	{config.Compute, "nvidia-cuda-mps-server", programDirs, bin},

	{config.Compute, "nvidia.icd", below(dataDirs, "OpenCL/vendors"), []string{"/etc/OpenCL/vendors"}},
	{config.Graphics, "*nvidia*.json", below(dataDirs, "glvnd/egl_vendor.d"), []string{"/usr/share/glvnd/egl_vendor.d"}},
	{config.Graphics, "*nvidia*.json", below(dataDirs, "egl/egl_external_platform.d"), []string{"/usr/share/egl/egl_external_platform.d"}},
	{config.Graphics, "nvidia_icd.json", below(dataDirs, "vulkan/icd.d"), []string{"/usr/share/vulkan/icd.d"}},
	// Fedora and openSUSE keep one for each machine.
	{config.Graphics, "nvidia_icd." + gnuMachine + ".json", below(dataDirs, "vulkan/icd.d"), []string{"/usr/share/vulkan/icd.d"}},
	{config.Graphics, "nvidia_layers*.json", below(dataDirs, "vulkan/implicit_layer.d"), []string{"/usr/share/vulkan/implicit_layer.d"}},
	{config.Graphics, "nvoptix.bin", below(dataDirs, "nvidia"), []string{"/usr/share/nvidia"}},

	{config.Display, "nvidia_drv.so", append(below(xorgModules, "drivers"), xorgElsewhere...), below(xorgModules, "drivers")},
	{config.Display, "libglxserver_nvidia.so", append(below(xorgModules, "extensions"), xorgElsewhere...), below(xorgModules, "extensions")},
	{config.Display, "*nvidia*.conf", below(dataDirs, "X11/xorg.conf.d"), []string{"/usr/share/X11/xorg.conf.d"}},
}

var (
	programDirs = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}
	bin         = []string{"/usr/bin"}

	// dataDirs hold what packages share; the last are of driver roots that have
	// no usr.
	dataDirs = []string{"/usr/share", "/etc", "/share", "/"}

	// xorgModules are where the X servers of Debian and of RHEL load modules from.
	xorgModules   = []string{"/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"}
	xorgElsewhere = []string{
		"/usr/lib/" + gnuMachine + "-linux-gnu/nvidia/xorg", // Ubuntu
		"/usr/lib/nvidia", // Debian
	}
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
func findSought(root host.DriverRoot, features config.Features) ([]Bind, error) {
	var found []Bind
	for _, s := range sought {
		if !features.Any(s.feature) {
			continue
		}
		paths, err := firstMatches(root, s.from, s.name)
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", s.name, err)
		}
		for _, file := range paths {
			resolved, err := root.Resolve(file)
			if err != nil {
				return nil, fmt.Errorf("looking for %s: %w", s.name, err)
			}
			for _, dir := range s.at {
				found = append(found, Bind{NodePath: root.NodePath(resolved), ContainerPath: path.Join(dir, path.Base(file))})
			}
		}
	}
	return found, nil
}

// firstMatches are the files of that name in the first directory that has one.
func firstMatches(root host.DriverRoot, dirs []string, name string) ([]string, error) {
	for _, dir := range dirs {
		paths, err := root.Glob(path.Join(dir, name))
		if err != nil || len(paths) > 0 {
			return paths, err
		}
	}
	return nil, nil
}
