package host

import (
	"cmp"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
)

// NVMLName is the SONAME of NVML. Its directory contains the other driver libraries, too.
const NVMLName = "libnvidia-ml.so.1"

// layout is the layout of a driver installation. All paths except root are relative to root.
type layout struct {
	name      string
	root      string   // path on the node
	libraries []string // directories of the libraries
	programs  []string // directories of the programs, such as nvidia-smi
	data      []string // directories that correspond to /usr/share
}

// gnuMachine is the machine in GNU target triplets.
var gnuMachine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

var (
	usrLibraries = []string{
		"/usr/lib/" + gnuMachine + "-linux-gnu",                // Debian, Ubuntu
		"/usr/lib/" + gnuMachine + "-linux-gnu/nvidia/current", // Debian, without its alternatives
		"/usr/lib64", // RHEL, SUSE
		"/lib64",
		"/lib/" + gnuMachine + "-linux-gnu",
		"/lib",
	}
	usrPrograms = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}
	usrData     = []string{"/usr/share", "/etc"}
)

// layouts are tried in this order. The node's packages are last, because they are often left over when a driver
// container is installed. docs/driver-roots.md contains this table.
var layouts = []layout{
	{"NVIDIA's driver container", "/run/nvidia/driver", usrLibraries, usrPrograms, usrData},
	{"GKE, Container-Optimized OS", "/home/kubernetes/bin/nvidia", []string{"/lib64"}, []string{"/bin"}, []string{"/"}},
	{"sandboxes", "/usr/local/nvidia", []string{"/lib64", "/lib"}, []string{"/bin"}, []string{"/share", "/"}},
	{"Talos", "/", []string{"/usr/local/glibc/usr/lib"}, []string{"/usr/local/bin"}, []string{"/usr/local/share", "/usr/share"}},
	{"Flatcar", "/", []string{"/opt/nvidia/current/lib64", "/opt/nvidia/current/usr/lib64"},
		[]string{"/opt/bin", "/opt/nvidia/current/bin", "/opt/nvidia/current/usr/bin"},
		[]string{"/opt/nvidia/current/share", "/opt/nvidia/current/usr/share", "/etc"}},
	{"Bottlerocket", "/", joinAll("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/lib/nvidia/tesla", "/usr/lib/nvidia"),
		joinAll("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/libexec/nvidia/tesla/bin", "/usr/bin"),
		joinAll("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/share/nvidia/tesla", "/usr/share")},
	{"NixOS", "/", []string{"/run/opengl-driver/lib"}, []string{"/run/opengl-driver/bin", "/run/current-system/sw/bin"},
		[]string{"/run/opengl-driver/share", "/run/opengl-driver/etc"}},
	{"Debian, Ubuntu, RHEL, SUSE", "/", usrLibraries, usrPrograms, usrData},
}

// anyLayout returns the union of all layouts for a configured root.
func anyLayout(root string) layout {
	all := layout{root: root}
	for _, l := range slices.Backward(layouts) { // the most common first
		all.libraries = union(all.libraries, l.libraries)
		all.programs = union(all.programs, l.programs)
		all.data = union(all.data, l.data)
	}
	return all
}

func union(dirs, more []string) []string {
	for _, dir := range more {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func joinAll(dir string, names ...string) []string {
	joined := make([]string, len(names))
	for i, name := range names {
		joined[i] = path.Join(dir, name)
	}
	return joined
}

// DriverRoot is the root file system that contains the NVIDIA driver: the node's, or that of a driver container, for
// example. All paths are within the root.
type DriverRoot struct {
	Root

	// LibraryDir is the directory of the driver libraries, symlinks resolved.
	LibraryDir string

	// NVML is the path of NVML, symlinks resolved.
	NVML string

	// Programs and Data are the directories of programs and data files, in search order. Data corresponds to
	// /usr/share.
	Programs, Data []string
}

// NoDriverError is returned if the node has no driver.
type NoDriverError struct{ Tried []string }

func (e *NoDriverError) Error() string {
	return fmt.Sprintf("no NVIDIA driver found, tried %s; install the driver, or set --driver-root", strings.Join(e.Tried, ", "))
}

// FindDriver returns the node's driver root. explicit is the configured root; if empty, FindDriver searches the known
// locations. library is the configured path of NVML; if empty, FindDriver searches the root. Both are paths on the
// node. The error is a *NoDriverError if there is no driver.
func FindDriver(node Root, explicit, library string) (DriverRoot, error) {
	candidates := layouts
	if explicit != "" {
		candidates = []layout{anyLayout(explicit)}
	}
	if library != "" {
		return driverWithLibrary(node, anyLayout(cmp.Or(explicit, "/")), library)
	}
	var tried []string
	for _, l := range candidates {
		root, err := node.Sub(l.root)
		if err != nil {
			return DriverRoot{}, fmt.Errorf("finding the driver: %w", err)
		}
		if _, err := root.Stat("/"); err != nil {
			tried = append(tried, l.root)
			continue
		}
		for _, dir := range l.libraries {
			name := path.Join(dir, NVMLName)
			if _, err := root.Stat(name); err != nil {
				tried = append(tried, path.Join(l.root, name))
				continue
			}
			return newDriverRoot(root, l, name)
		}
	}
	return DriverRoot{}, &NoDriverError{Tried: tried}
}

// driverWithLibrary returns the driver root for a configured library, which must be below the root.
func driverWithLibrary(node Root, l layout, library string) (DriverRoot, error) {
	root, err := node.Sub(l.root)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("finding the driver: %w", err)
	}
	inside, below := strings.CutPrefix(path.Clean(library), strings.TrimSuffix(path.Clean(l.root), "/"))
	if !below {
		return DriverRoot{}, fmt.Errorf("finding the driver: --nvml-library %s is not below --driver-root %s", library, l.root)
	}
	if _, err := root.Stat(inside); err != nil {
		return DriverRoot{}, &NoDriverError{Tried: []string{library}}
	}
	return newDriverRoot(root, l, inside)
}

func newDriverRoot(root Root, l layout, nvml string) (DriverRoot, error) {
	resolved, err := root.Resolve(nvml)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("finding the driver: %w", err)
	}
	return DriverRoot{
		Root: root, LibraryDir: path.Dir(resolved), NVML: resolved, Programs: l.programs, Data: l.data,
	}, nil
}
