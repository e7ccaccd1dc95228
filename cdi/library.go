package cdi

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Library is a shared library of the driver.
type Library struct {
	NodePath string // the file itself, links resolved
	SONAME   string // what programs link against
	Machine  elf.Machine
}

// Binary is a program of the driver.
type Binary struct {
	NodePath string
	Name     string // "nvidia-smi"
}

// binaries are the programs of the driver for compute and utility, by name.
var binaries = []string{
	"nvidia-cuda-mps-control",
	"nvidia-cuda-mps-server",
	"nvidia-debugdump",
	"nvidia-persistenced",
	"nvidia-smi",
}

var binaryDirs = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}

// notForCompute are the libraries for graphics, video and display, by the
// beginning of their names. Whatever else carries the driver's version is
// taken: the names of compute libraries change with each driver, and one that
// is missed breaks programs in ways that are hard to see.
var notForCompute = []string{
	"libEGL", "libGL", "libglx", "libvdpau",
	"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow",
	"libnvidia-egl", "libnvidia-gl", "libnvidia-rtcore", "libnvidia-tls", "libnvoptix",
	"libnvidia-api", "libnvidia-cbl", "libnvidia-fbc", "libnvidia-gtk", "libnvidia-ifr",
	"libnvidia-ngx", "libnvidia-present", "libnvidia-vksc", "libnvidia-vulkan",
	"libnvidia-wayland", "libnvidia-xcfg",
}

// libraries finds the driver's libraries for compute and utility. version is
// the driver's; the libraries carry it as their suffix.
func libraries(root host.DriverRoot, version string) ([]Library, error) {
	entries, err := root.ReadDir(root.LibraryDir)
	if err != nil {
		return nil, fmt.Errorf("listing the driver's libraries: %w", err)
	}
	var found []Library
	for _, entry := range entries {
		if !ofDriver(entry.Name(), version) {
			continue
		}
		library, err := readLibrary(root, path.Join(root.LibraryDir, entry.Name()))
		if err != nil {
			return nil, err
		}
		// Several names of one file are one library.
		if !slices.ContainsFunc(found, func(l Library) bool { return l.SONAME == library.SONAME }) {
			found = append(found, library)
		}
	}
	for _, soname := range []string{"libcuda.so.1", host.NVMLName} {
		if !slices.ContainsFunc(found, func(l Library) bool { return l.SONAME == soname }) {
			return nil, fmt.Errorf("%s of driver %s is not in %s: the driver is not installed whole; reinstall it",
				soname, version, root.NodePath(root.LibraryDir))
		}
	}
	return found, nil
}

func ofDriver(name, version string) bool {
	if slices.ContainsFunc(notForCompute, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return false
	}
	// libnvidia-nvvm70 has a version of its own.
	return strings.HasSuffix(name, ".so."+version) || strings.HasPrefix(name, "libnvidia-nvvm70.so.")
}

func readLibrary(root host.DriverRoot, name string) (Library, error) {
	resolved, err := root.Resolve(name)
	if err != nil {
		return Library{}, err
	}
	image, err := elf.Open(root.LocalPath(resolved))
	if err != nil {
		return Library{}, fmt.Errorf("reading %s: %w (the driver is damaged; reinstall it)", root.NodePath(resolved), err)
	}
	defer image.Close()
	sonames, err := image.DynString(elf.DT_SONAME)
	if err != nil {
		return Library{}, fmt.Errorf("reading the SONAME of %s: %w", root.NodePath(resolved), err)
	}
	soname := path.Base(resolved)
	if len(sonames) > 0 {
		soname = path.Base(sonames[0])
	}
	return Library{NodePath: root.NodePath(resolved), SONAME: soname, Machine: image.Machine}, nil
}

// programs finds the driver's binaries. None is needed by every container, so
// one that is not installed is left out.
func programs(root host.DriverRoot) ([]Binary, error) {
	var found []Binary
	for _, name := range binaries {
		for _, dir := range binaryDirs {
			resolved, err := root.Resolve(path.Join(dir, name))
			if err != nil {
				return nil, err
			}
			_, err = root.Stat(resolved)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("looking for %s: %w", name, err)
			}
			found = append(found, Binary{NodePath: root.NodePath(resolved), Name: name})
			break
		}
	}
	return found, nil
}
