package host

import (
	"cmp"
	"fmt"
	"path"
	"runtime"
	"strings"
)

// NVMLName is the SONAME of NVML. Where it is, the driver's libraries are.
const NVMLName = "libnvidia-ml.so.1"

// driverRoots are the places that a driver root is looked for, by the node's paths.
// The node's own root comes last: a driver container leaves nothing of itself
// there, whereas an old installation is often left behind.
var driverRoots = []string{
	"/run/nvidia/driver",          // NVIDIA's driver container
	"/home/kubernetes/bin/nvidia", // GKE on Container-Optimized OS
	"/usr/local/nvidia",           // mounted into virtual machines and sandboxes
	"/",                           // the distribution's packages
}

// multiarch is what Debian and Ubuntu call this machine's libraries.
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// libraryDirs are the directories of a driver root that hold its libraries.
var libraryDirs = []string{
	"/usr/lib/" + multiarch, // Debian, Ubuntu
	"/usr/lib/" + multiarch + "/nvidia/current",
	"/usr/lib64", // RHEL, SUSE
	"/lib64",
	"/lib/" + multiarch,
	"/lib",
}

// DriverRoot is where a node keeps the NVIDIA driver. Distributions disagree:
// it may be installed in the node's own root, or come with a root file system
// of its own, as from a driver container.
type DriverRoot struct {
	Root

	// LibraryDir holds the driver's libraries, within the root, links resolved.
	LibraryDir string

	// NVML is the NVML library within the root, links resolved.
	NVML string
}

// NoDriverError says that no driver is there. It is a state that ends when a
// driver is installed, not a failure.
type NoDriverError struct{ Tried []string }

func (e *NoDriverError) Error() string {
	return fmt.Sprintf("no NVIDIA driver found: install one, or name its root with --driver-root; tried %s",
		strings.Join(e.Tried, ", "))
}

// FindDriver returns the node's driver root. explicit is the path of the only root
// to look at, empty for all the known places; library is the path of NVML,
// empty for where the root keeps it. Both are the node's paths. The error is
// a *NoDriverError when no driver is there.
func FindDriver(node Root, explicit, library string) (DriverRoot, error) {
	candidates := driverRoots
	if explicit != "" {
		candidates = []string{explicit}
	}
	if library != "" {
		return driverAt(node, cmp.Or(explicit, "/"), library)
	}
	var tried []string
	for _, candidate := range candidates {
		root, err := node.Sub(candidate)
		if err != nil {
			return DriverRoot{}, fmt.Errorf("looking for the driver: %w", err)
		}
		if _, err := root.Stat("/"); err != nil {
			tried = append(tried, candidate)
			continue
		}
		for _, dir := range libraryDirs {
			name := path.Join(dir, NVMLName)
			if _, err := root.Stat(name); err != nil {
				tried = append(tried, path.Join(candidate, name))
				continue
			}
			return driverWith(root, name)
		}
	}
	return DriverRoot{}, &NoDriverError{Tried: tried}
}

// driverAt takes the library that the user named, which is within the driver root.
func driverAt(node Root, rootPath, library string) (DriverRoot, error) {
	root, err := node.Sub(rootPath)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("looking for the driver: %w", err)
	}
	inside, below := strings.CutPrefix(path.Clean(library), strings.TrimSuffix(path.Clean(rootPath), "/"))
	if !below {
		return DriverRoot{}, fmt.Errorf("looking for the driver: --nvml-library %s is not below --driver-root %s", library, rootPath)
	}
	if _, err := root.Stat(inside); err != nil {
		return DriverRoot{}, &NoDriverError{Tried: []string{library}}
	}
	return driverWith(root, inside)
}

func driverWith(root Root, nvml string) (DriverRoot, error) {
	resolved, err := root.Resolve(nvml)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("looking for the driver: %w", err)
	}
	return DriverRoot{Root: root, LibraryDir: path.Dir(resolved), NVML: resolved}, nil
}
