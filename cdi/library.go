package cdi

import (
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Library is a shared library of the driver.
type Library struct {
	HostPath string   // symlinks resolved
	SONAME   string   // the base name of HostPath if the library has no valid SONAME
	Aliases  []string // more names to mount it under, relative to a loader directory; see libraryAliases
	Machine  elf.Machine
}

// libraryUses maps libraries of the driver to features by prefix of the file name; the first match applies.
// docs/features.md has the same table.
var libraryUses = []struct {
	prefix   string
	features Features
	why      string // empty if obvious
}{
	{"libcuda.", Features{Compute, Video}, "decoders and encoders run in a CUDA context"},
	{"libnvidia-ml.", Features{Compute, Utility}, "NCCL and CUDA frameworks query the GPU topology from NVML"},
	{"libnvidia-cfg.", Features{Display}, "used by the X driver to configure GPUs"},
	{"libnvidia-gpucomp.", Features{Compute, Graphics}, "compiler shared by CUDA and shaders"},
	{"libnvidia-allocator.", Features{Compute, Graphics}, "also the GBM backend"},
	{pkcs11Prefix, Features{Compute}, "used by CUDA to encrypt transfers; mounted only with confidential computing"},
	{"libnvidia-sandboxutils.", nil, "used by container tools on the host"},

	{"libnvcuvid", Features{Video}, ""},
	{"libnvidia-encode", Features{Video}, ""},
	{"libnvidia-opticalflow", Features{Video}, ""},
	{"libvdpau", Features{Video}, ""},

	{"libEGL", Features{Graphics}, ""},
	{"libGL", Features{Graphics}, ""},
	{"libnvidia-api", Features{Graphics}, "NVAPI, for games on Proton"},
	{"libnvidia-cbl", Features{Graphics}, "Vulkan ray tracing"},
	{"libnvidia-egl", Features{Graphics}, ""},
	{"libnvidia-gl", Features{Graphics}, ""},
	{"libnvidia-ngx", Features{Graphics}, "DLSS"},
	{"libnvidia-present", Features{Graphics}, ""},
	{"libnvidia-rtcore", Features{Graphics}, "ray tracing, for Vulkan and OptiX"},
	{"libnvidia-tls", Features{Graphics}, "thread-local storage of OpenGL"},
	{"libnvidia-vksc", Features{Graphics}, "Vulkan SC"},
	{"libnvidia-vulkan", Features{Graphics}, ""},
	{"libnvoptix", Features{Graphics}, ""},

	{"libnvidia-fbc", Features{Display}, "screen capture"},
	{"libnvidia-ifr", Features{Display}, "screen capture"},
	{"libglx", nil, "X server module, mounted with the other files"},
	{"libnvidia-gtk", nil, "part of nvidia-settings, which configures screens of the host"},
	{"libnvidia-wayland", nil, "part of nvidia-settings, which configures screens of the host"},
	{"libnvidia-xcfg", nil, "part of nvidia-settings, which configures screens of the host"},

	{"", Features{Compute}, "compute libraries vary between driver versions, and failures from a missing one are hard to diagnose"},
}

// pkcs11Prefix is the file name prefix of libraries that exist once for each supported version of OpenSSL.
const pkcs11Prefix = "libnvidia-pkcs11"

// libraryAliases are names other than the SONAME by which programs load a library.
var libraryAliases = []struct {
	feature      Feature
	soname, name string // the SONAME may be a pattern
	why          string
}{
	{Compute, "libcuda.so.1", "libcuda.so", "programs often dlopen it without the version"},
	{Compute, "libnvidia-ml.so.1", "libnvidia-ml.so", "NVML bindings, such as Rust's, load it without the version"},
	{Utility, "libnvidia-ml.so.1", "libnvidia-ml.so", "NVML bindings, such as Rust's, load it without the version"},
	{Video, "libcuda.so.1", "libcuda.so", "programs often dlopen it without the version"},
	{Video, "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so", "loaded by the Optical Flow SDK"},
	{Video, "libvdpau_nvidia.so.1", "vdpau/libvdpau_nvidia.so.1", "libvdpau's directory for backends"},
	{Graphics, "libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so", "libgbm's directory for backends"},
	{Graphics, "libGLX_nvidia.so.0", "libGLX_indirect.so.0", "loaded by GLVND for X servers of an unknown vendor"},
	{Graphics, "libnvidia-vulkan-producer.so.*", "libnvidia-vulkan-producer.so", "loaded by Vulkan on Wayland before driver 550"},
}

// requiredLibraries must be installed for a feature to be available.
var requiredLibraries = []struct {
	feature Feature
	soname  string
}{
	{Compute, "libcuda.so.1"},
	{Utility, host.NVMLName},
	{Graphics, "libEGL_nvidia.so.0"},
	{Video, "libcuda.so.1"},
	{Video, "libnvcuvid.so.1"},
}

// maxLibraries limits the libraries of a driver. Drivers have about a hundred.
const maxLibraries = 500

// findLibraries returns the driver libraries that features use. It returns an error if one they require is missing.
func findLibraries(root host.DriverRoot, driver gpu.Driver, features Features) ([]Library, error) {
	names, err := libraryNames(root)
	if err != nil {
		return nil, err
	}
	var found []Library
	for _, name := range names {
		if !isUsed(name, driver, features) {
			continue
		}
		library, err := readLibrary(root.Root, path.Join(root.LibraryDir, name))
		if errors.Is(err, errUnusableName) || errors.Is(err, errOtherMachine) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Symlinks to a library have the same SONAME.
		if !hasSONAME(found, library.SONAME) {
			library.Aliases = aliasesOf(library.SONAME, features)
			found = append(found, library)
		}
		if len(found) > maxLibraries {
			return nil, fmt.Errorf("listing the driver libraries: more than %d of driver %s in %s; reinstall the driver",
				maxLibraries, driver.Version, root.NodePath(root.LibraryDir))
		}
	}
	return found, checkRequired(root, driver, features, names, found)
}

// isUsed reports whether a file is a driver library that features use.
func isUsed(name string, driver gpu.Driver, features Features) bool {
	return belongsToDriver(name, driver.Version) && features.Any(usesOf(name)...) &&
		(driver.Confidential || !strings.HasPrefix(name, pkcs11Prefix))
}

// checkRequired returns an error for each of requiredLibraries that features require and found lacks.
func checkRequired(root host.DriverRoot, driver gpu.Driver, features Features, names []string, found []Library) error {
	var errs []error
	for _, n := range requiredLibraries {
		if features.Any(n.feature) && !hasSONAME(found, n.soname) {
			errs = append(errs, missingLibrary(root, names, n.soname, driver.Version, n.feature))
		}
	}
	return errors.Join(errs...)
}

// libraryNames returns the paths of the files in the library directory and of the libvdpau backends below it, relative
// to that directory.
func libraryNames(root host.DriverRoot) ([]string, error) {
	entries, err := root.ReadDir(root.LibraryDir)
	if err != nil {
		return nil, fmt.Errorf("listing the driver libraries: %w", err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	backends, err := root.Glob(path.Join(root.LibraryDir, "vdpau/libvdpau_nvidia.so.*"))
	for _, backend := range backends {
		names = append(names, path.Join("vdpau", path.Base(backend)))
	}
	return names, err
}

// missingLibrary returns the error for a missing library. It distinguishes an incomplete driver install from one that
// was upgraded while the old kernel module stayed loaded.
func missingLibrary(root host.DriverRoot, names []string, soname, version string, feature Feature) error {
	stem, _, _ := strings.Cut(soname, ".so.")
	for _, name := range names {
		// A driver version contains a dot; the suffix of a SONAME does not.
		if other, ok := strings.CutPrefix(name, stem+".so."); ok && strings.Contains(other, ".") && other != version {
			return fmt.Errorf("%s in %s has driver version %s, but the kernel module has %s; load the kernel module of the installed driver, or reboot the node",
				soname, root.NodePath(root.LibraryDir), other, version)
		}
	}
	return fmt.Errorf("%s of driver %s not found in %s, but required by feature %s; reinstall the complete driver, or select other features",
		soname, version, root.NodePath(root.LibraryDir), feature)
}

// belongsToDriver reports whether a file is a library of the driver with that version. The names of most libraries end
// with the driver version. The others are matched by name; requiring three dots excludes symlinks
// such as libnvidia-egl-wayland.so.1.
func belongsToDriver(name, version string) bool {
	return strings.HasSuffix(name, ".so."+version) ||
		strings.HasPrefix(name, "libnvidia-nvvm70.so.") ||
		strings.HasPrefix(name, "libnvidia-egl-") && strings.Count(name, ".") >= 3
}

func usesOf(name string) Features {
	for _, use := range libraryUses {
		if strings.HasPrefix(path.Base(name), use.prefix) {
			return use.features
		}
	}
	return nil
}

func aliasesOf(soname string, features Features) (names []string) {
	for _, a := range libraryAliases {
		if match, _ := path.Match(a.soname, soname); match && features.Any(a.feature) && !slices.Contains(names, a.name) {
			names = append(names, a.name)
		}
	}
	return names
}

func hasSONAME(libraries []Library, soname string) bool {
	return slices.ContainsFunc(libraries, func(l Library) bool { return l.SONAME == soname })
}

// readLibrary reads the ELF headers of a library. It uses the file name if the SONAME is not a valid file name.
func readLibrary(root host.Root, name string) (Library, error) {
	resolved, err := root.Resolve(name)
	if err != nil {
		return Library{}, err
	}
	if !isPath(root.NodePath(resolved)) {
		return Library{}, errUnusableName
	}
	damaged := func(err error) error {
		return fmt.Errorf("reading %s: %w; reinstall the driver, which is damaged", root.NodePath(resolved), err)
	}
	file, err := root.Open(resolved)
	if err != nil {
		return Library{}, damaged(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Library{}, damaged(err)
	}
	soname, machine, err := readELF(file, info.Size())
	if err == nil && machine != hostMachine {
		err = errOtherMachine
	}
	if err != nil {
		return Library{}, damaged(err)
	}
	if !isFileName(soname) {
		soname = path.Base(resolved)
	}
	return Library{HostPath: root.NodePath(resolved), SONAME: soname, Machine: machine}, nil
}
