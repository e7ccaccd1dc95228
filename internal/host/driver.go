package host

import (
	"cmp"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
)

// NVMLName is the SONAME of NVML. Its directory also contains the other driver libraries.
const NVMLName = "libnvidia-ml.so.1"

// layout is the layout of a driver installation. All paths except root and marker are relative to root.
type layout struct {
	name      string
	root      string   // path on the node
	libraries []string // directories of the libraries
	programs  []string // directories of the programs, such as nvidia-smi
	data      []string // directories that correspond to /usr/share

	platform string // see DriverRoot.Platform
	marker   string // file of the node without which the layout does not apply; empty if none is needed
}

// gnuMachine is the machine in GNU target triplets.
var gnuMachine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

var (
	usrLibraries = []string{
		"/usr/lib/" + gnuMachine + "-linux-gnu",                // Debian, Ubuntu
		"/usr/lib/" + gnuMachine + "-linux-gnu/nvidia/current", // Debian, if update-alternatives created no links
		"/usr/lib64", // RHEL, SUSE
		"/lib64",
		"/lib/" + gnuMachine + "-linux-gnu",
		"/lib",
	}
	usrPrograms = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}
	usrData     = []string{"/usr/share", "/etc"}

	jetsonLibraries = joinAll("/usr/lib/"+gnuMachine+"-linux-gnu", "nvidia", "tegra") // tegra before JetPack 6
)

// jetsonRelease is a file that exists only on Jetson Linux.
const jetsonRelease = "/etc/nv_tegra_release"

// layouts are tried in this order. The node's own driver packages are last, because they are often left over on nodes
// with a driver container. docs/driver-roots.md contains this table.
var layouts = []layout{
	{name: "NVIDIA's driver container", root: "/run/nvidia/driver", libraries: usrLibraries, programs: usrPrograms, data: usrData},
	{name: "GKE, Container-Optimized OS", root: "/home/kubernetes/bin/nvidia",
		libraries: []string{"/lib64"}, programs: []string{"/bin"}, data: []string{"/"}},
	{name: "sandboxes", root: "/usr/local/nvidia",
		libraries: []string{"/lib64", "/lib"}, programs: []string{"/bin"}, data: []string{"/share", "/"}},
	{name: "Talos", root: "/", libraries: []string{"/usr/local/glibc/usr/lib"},
		programs: []string{"/usr/local/bin"}, data: []string{"/usr/local/share", "/usr/share"}},
	{name: "Flatcar", root: "/", libraries: []string{"/opt/nvidia/current/lib64", "/opt/nvidia/current/usr/lib64"},
		programs: []string{"/opt/bin", "/opt/nvidia/current/bin", "/opt/nvidia/current/usr/bin"},
		data:     []string{"/opt/nvidia/current/share", "/opt/nvidia/current/usr/share", "/etc"}},
	{name: "Bottlerocket", root: "/",
		libraries: joinAll("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/lib/nvidia/tesla", "/usr/lib/nvidia"),
		programs:  joinAll("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/libexec/nvidia/tesla/bin", "/usr/bin"),
		data:      joinAll("/"+gnuMachine+"-bottlerocket-linux-gnu/sys-root", "/usr/share/nvidia/tesla", "/usr/share")},
	{name: "NixOS", root: "/", libraries: []string{"/run/opengl-driver/lib"},
		programs: []string{"/run/opengl-driver/bin", "/run/current-system/sw/bin"},
		data:     []string{"/run/opengl-driver/share", "/run/opengl-driver/etc"}},
	{name: "WSL2", root: "/", libraries: []string{"/usr/lib/wsl/lib"}, programs: []string{"/usr/lib/wsl/lib"}, data: usrData,
		platform: "wsl2"},
	{name: "Jetson", root: "/", libraries: jetsonLibraries, programs: usrPrograms, data: usrData,
		platform: "jetson", marker: jetsonRelease},
	{name: "Debian, Ubuntu, RHEL, SUSE", root: "/", libraries: usrLibraries, programs: usrPrograms, data: usrData},
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

// DriverRoot is the root file system that contains the NVIDIA driver, for example of the node or of a driver container.
// All paths are within the root.
type DriverRoot struct {
	Root

	// LibraryDir is the directory of the driver libraries, symlinks resolved.
	LibraryDir string

	// NVML is the path of NVML, symlinks resolved; empty on a Jetson without it.
	NVML string

	// Platform is the gpu.Platform of the layout.
	Platform string

	// Programs and Data are the directories of programs and data files, in search order. Data corresponds to
	// /usr/share.
	Programs, Data []string
}

// LoaderDirs returns the directories, in this process's file system, of the libraries that NVML itself is linked
// against or opens. Except on WSL2 and Jetson there are none, because NVML requires only glibc.
func (d DriverRoot) LoaderDirs() []string {
	i := slices.IndexFunc(layouts, func(l layout) bool { return d.Platform != "" && l.platform == d.Platform })
	if i < 0 {
		return nil
	}
	var local []string
	for _, dir := range layouts[i].libraries {
		if resolved, err := d.Resolve(dir); err == nil {
			local = append(local, d.LocalPath(resolved))
		}
	}
	return local
}

// DevicesDir returns the directory, in this process's file system, of the driver's device nodes if they are not in the
// node's /dev: NVIDIA's driver container creates them in its own /dev. It returns "" if they are in the node's, or in
// neither.
func (d DriverRoot) DevicesDir(node Root) string {
	const control = "/dev/nvidiactl"
	if d.path == node.path || exists(node, control) || !exists(d.Root, control) {
		return ""
	}
	dir, err := d.Resolve("/dev")
	if err != nil {
		return ""
	}
	return d.LocalPath(dir)
}

// NoDriverError is returned if the node has no driver.
type NoDriverError struct{ Tried []string }

func (e *NoDriverError) Error() string {
	return fmt.Sprintf("no NVIDIA driver found, tried %s; install the driver, or set --driver-root", strings.Join(e.Tried, ", "))
}

// FindDriver returns the node's driver root. explicit is the configured root; if empty, the root is "/" if library is
// set, else FindDriver searches the known locations. library is the configured path of NVML; if empty, FindDriver
// searches the root. Both are paths on the node. The error is a *NoDriverError if there is no driver.
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
		if l.marker != "" && !exists(node, l.marker) {
			continue
		}
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
	if root, found := jetsonWithoutNVML(node); found && explicit == "" {
		return root, nil
	}
	return DriverRoot{}, &NoDriverError{Tried: tried}
}

// jetsonWithoutNVML returns the driver root of a Jetson whose driver has no NVML, as before JetPack 6.
func jetsonWithoutNVML(node Root) (DriverRoot, bool) {
	for _, dir := range jetsonLibraries {
		libcuda := path.Join(dir, "libcuda.so.1.1")
		if !exists(node, jetsonRelease) || !exists(node, libcuda) {
			continue
		}
		if resolved, err := node.Resolve(libcuda); err == nil {
			return DriverRoot{Root: node, LibraryDir: path.Dir(resolved), Platform: "jetson", Programs: usrPrograms, Data: usrData}, true
		}
	}
	return DriverRoot{}, false
}

func exists(root Root, name string) bool {
	_, err := root.Stat(name)
	return err == nil
}

// driverWithLibrary returns the driver root for a configured library, which must be below the root.
func driverWithLibrary(node Root, l layout, library string) (DriverRoot, error) {
	root, err := node.Sub(l.root)
	if err != nil {
		return DriverRoot{}, fmt.Errorf("finding the driver: %w", err)
	}
	inside, below := strings.CutPrefix(path.Clean(library), strings.TrimSuffix(path.Clean(l.root), "/")+"/")
	if !below {
		return DriverRoot{}, fmt.Errorf("finding the driver: --nvml-library %s is not below --driver-root %s", library, l.root)
	}
	inside = "/" + inside
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
		Root: root, LibraryDir: path.Dir(resolved), NVML: resolved, Platform: platformOf(path.Dir(nvml)),
		Programs: l.programs, Data: l.data,
	}, nil
}

// platformOf returns the platform whose layout lists dir among its library directories; empty if there is none. The
// layout in which NVML was found may be that of anyLayout, which has no platform.
func platformOf(dir string) string {
	i := slices.IndexFunc(layouts, func(l layout) bool { return l.platform != "" && slices.Contains(l.libraries, dir) })
	if i < 0 {
		return ""
	}
	return layouts[i].platform
}
