package host

import (
	"cmp"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
)

// NVMLName is the SONAME of NVML. Where it is, the driver's libraries are.
const NVMLName = "libnvidia-ml.so.1"

// layout is how one kind of node keeps the driver. All paths but root are below
// root.
type layout struct {
	name      string
	root      string   // by the node's path
	libraries []string // directories that may hold the libraries
	programs  []string // directories that may hold nvidia-smi and its like
	data      []string // directories that are to others what /usr/share is
}

// gnuMachine is what GNU calls this machine.
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

// layouts are tried from the first to the last. The node's own packages are the
// last: a driver container leaves nothing of itself there, whereas an old
// installation is often left behind. docs/driver-roots.md is held to it.
var layouts = []layout{
	{"NVIDIA's driver container", "/run/nvidia/driver", usrLibraries, usrPrograms, usrData},
	{"GKE, Container-Optimized OS", "/home/kubernetes/bin/nvidia", []string{"/lib64"}, []string{"/bin"}, []string{"/"}},
	{"sandboxes", "/usr/local/nvidia", []string{"/lib64", "/lib"}, []string{"/bin"}, []string{"/share", "/"}},
	{"Talos", "/", []string{"/usr/local/glibc/usr/lib"}, []string{"/usr/local/bin"}, []string{"/usr/local/share", "/usr/share"}},
	{"Flatcar", "/", []string{"/opt/nvidia/current/lib64", "/opt/nvidia/current/usr/lib64"},
		[]string{"/opt/bin", "/opt/nvidia/current/bin", "/opt/nvidia/current/usr/bin"},
		[]string{"/opt/nvidia/current/share", "/opt/nvidia/current/usr/share", "/etc"}},
	{"Bottlerocket", "/", below("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/lib/nvidia/tesla", "/usr/lib/nvidia"),
		below("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/libexec/nvidia/tesla/bin", "/usr/bin"),
		below("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/share/nvidia/tesla", "/usr/share")},
	{"NixOS", "/", []string{"/run/opengl-driver/lib"}, []string{"/run/opengl-driver/bin", "/run/current-system/sw/bin"},
		[]string{"/run/opengl-driver/share", "/run/opengl-driver/etc"}},
	{"Debian, Ubuntu, RHEL, SUSE", "/", usrLibraries, usrPrograms, usrData},
}

// anywhere is the layout of a root that the user names: it may be any of them.
func anywhere(root string) layout {
	all := layout{root: root}
	for _, l := range slices.Backward(layouts) { // what is common first
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

func below(dir string, names ...string) []string {
	joined := make([]string, len(names))
	for i, name := range names {
		joined[i] = path.Join(dir, name)
	}
	return joined
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

	// Programs and Data are directories within the root, in the order in which
	// to look: for programs, and for what others keep in /usr/share.
	Programs, Data []string
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
	candidates := layouts
	if explicit != "" {
		candidates = []layout{anywhere(explicit)}
	}
	if library != "" {
		return driverAt(node, anywhere(cmp.Or(explicit, "/")), library)
	}
	var tried []string
	for _, l := range candidates {
		root, err := node.Sub(l.root)
		if err != nil {
			return DriverRoot{}, fmt.Errorf("looking for the driver: %w", err)
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
			return driverWith(root, l, name)
		}
	}
	return DriverRoot{}, &NoDriverError{Tried: tried}
}

// driverAt takes the library that the user named, which is within the driver root.
func driverAt(node Root, l layout, library string) (DriverRoot, error) {
	root, err := node.Sub(l.root)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("looking for the driver: %w", err)
	}
	inside, below := strings.CutPrefix(path.Clean(library), strings.TrimSuffix(path.Clean(l.root), "/"))
	if !below {
		return DriverRoot{}, fmt.Errorf("looking for the driver: --nvml-library %s is not below --driver-root %s", library, l.root)
	}
	if _, err := root.Stat(inside); err != nil {
		return DriverRoot{}, &NoDriverError{Tried: []string{library}}
	}
	return driverWith(root, l, inside)
}

func driverWith(root Root, l layout, nvml string) (DriverRoot, error) {
	resolved, err := root.Resolve(nvml)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("looking for the driver: %w", err)
	}
	return DriverRoot{
		Root: root, LibraryDir: path.Dir(resolved), NVML: resolved, Programs: l.programs, Data: l.data,
	}, nil
}
