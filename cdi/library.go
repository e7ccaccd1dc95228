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
	NodePath string   // the file itself, links resolved
	SONAME   string   // what programs link against
	Also     []string // what else programs open it by
	Machine  elf.Machine
}

// libraryUses says what a library of the driver is for, by the beginning of its
// file's name; the first line that fits counts. docs/features.md is held to it.
var libraryUses = []struct {
	prefix   string
	features Features
	why      string // where it is not plain
}{
	{"libcuda.", Features{Compute, Video}, "decoders and encoders work in a CUDA context"},
	{"libnvidia-ml.", Features{Compute, Utility}, "NCCL and the CUDA frameworks ask NVML for the GPUs' links"},
	{"libnvidia-cfg.", Features{Display}, "the X driver configures GPUs through it"},
	{"libnvidia-gpucomp.", Features{Compute, Graphics}, "the compiler that CUDA and the shaders share"},
	{"libnvidia-allocator.", Features{Compute, Graphics}, "it is the GBM backend, too"},
	{cryptography, Features{Compute}, "where confidential computing is on, CUDA encrypts by it what goes to a GPU"},
	{"libnvidia-sandboxutils.", nil, "it tells the host's tools what a container needs of the driver"},

	{"libnvcuvid", Features{Video}, ""},
	{"libnvidia-encode", Features{Video}, ""},
	{"libnvidia-opticalflow", Features{Video}, ""},
	{"libvdpau", Features{Video}, ""},

	{"libEGL", Features{Graphics}, ""},
	{"libGL", Features{Graphics}, ""},
	{"libnvidia-api", Features{Graphics}, "NVAPI, for games that run under Proton"},
	{"libnvidia-cbl", Features{Graphics}, "a part of Vulkan's ray tracing"},
	{"libnvidia-egl", Features{Graphics}, ""},
	{"libnvidia-gl", Features{Graphics}, ""},
	{"libnvidia-ngx", Features{Graphics}, "DLSS"},
	{"libnvidia-present", Features{Graphics}, ""},
	{"libnvidia-rtcore", Features{Graphics}, "ray tracing, for Vulkan and OptiX"},
	{"libnvidia-tls", Features{Graphics}, "the thread-local storage of OpenGL"},
	{"libnvidia-vksc", Features{Graphics}, "Vulkan SC"},
	{"libnvidia-vulkan", Features{Graphics}, ""},
	{"libnvoptix", Features{Graphics}, ""},

	{"libnvidia-fbc", Features{Display}, "it captures what is on a screen"},
	{"libnvidia-ifr", Features{Display}, "it captures what is on a screen"},
	{"libglx", nil, "a module of the X server, not for programs: see sought"},
	{"libnvidia-gtk", nil, "of nvidia-settings, which sets up the host's screens"},
	{"libnvidia-wayland", nil, "of nvidia-settings, which sets up the host's screens"},
	{"libnvidia-xcfg", nil, "of nvidia-settings, which sets up the host's screens"},

	{"", Features{Compute}, "the names of compute libraries change with each driver, and one that is missed breaks programs in ways that are hard to see"},
}

// cryptography is the beginning of the names of a library that there is for each
// version of OpenSSL that an image may have.
const cryptography = "libnvidia-pkcs11"

// alsoNamed are the names besides its SONAME that programs open a library by.
var alsoNamed = []struct {
	feature      Feature
	soname, name string // the SONAME may be a pattern
	why          string
}{
	{Compute, "libcuda.so.1", "libcuda.so", "programs that load it by hand often leave the version out"},
	{Compute, "libnvidia-ml.so.1", "libnvidia-ml.so", "so do bindings of NVML, such as Rust's"},
	{Utility, "libnvidia-ml.so.1", "libnvidia-ml.so", "so do bindings of NVML, such as Rust's"},
	{Video, "libcuda.so.1", "libcuda.so", "programs that load it by hand often leave the version out"},
	{Video, "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so", "the Optical Flow SDK opens it so"},
	{Video, "libvdpau_nvidia.so.1", "vdpau/libvdpau_nvidia.so.1", "where libvdpau looks for its backends"},
	{Graphics, "libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so", "where libgbm looks for its backends"},
	{Graphics, "libGLX_nvidia.so.0", "libGLX_indirect.so.0", "what GLVND opens for a server whose vendor it does not know"},
	{Graphics, "libnvidia-vulkan-producer.so.*", "libnvidia-vulkan-producer.so", "Vulkan on Wayland opens it so, before version 550"},
}

// needed are the libraries without which a feature is not there at all.
var needed = []struct {
	feature Feature
	soname  string
}{
	{Compute, "libcuda.so.1"},
	{Utility, host.NVMLName},
	{Graphics, "libEGL_nvidia.so.0"},
	{Video, "libcuda.so.1"},
	{Video, "libnvcuvid.so.1"},
}

// maxLibraries bounds the libraries of a driver, which has some hundred.
const maxLibraries = 500

// libraries finds the libraries of a driver for some features. They carry its
// version as their suffix.
func libraries(root host.DriverRoot, driver gpu.Driver, features Features) ([]Library, error) {
	names, err := libraryNames(root)
	if err != nil {
		return nil, err
	}
	var found []Library
	for _, name := range names {
		if !wanted(name, driver, features) {
			continue
		}
		library, err := readLibrary(root.Root, path.Join(root.LibraryDir, name))
		if errors.Is(err, errUnusableName) || errors.Is(err, errOtherMachine) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// Several names of one file are one library.
		if !has(found, library.SONAME) {
			library.Also = otherNames(library.SONAME, features)
			found = append(found, library)
		}
		if len(found) > maxLibraries {
			return nil, fmt.Errorf("listing the driver's libraries: more than %d of driver %s are in %s; reinstall the driver",
				maxLibraries, driver.Version, root.NodePath(root.LibraryDir))
		}
	}
	return found, checkNeeded(root, driver, features, names, found)
}

// wanted returns whether features use a library of that name.
func wanted(name string, driver gpu.Driver, features Features) bool {
	return ofVersion(name, driver.Version) && features.Any(usesOf(name)...) &&
		(driver.Confidential || !strings.HasPrefix(name, cryptography))
}

// checkNeeded returns an error that names each library that a feature cannot do without.
func checkNeeded(root host.DriverRoot, driver gpu.Driver, features Features, names []string, found []Library) error {
	var errs []error
	for _, n := range needed {
		if features.Any(n.feature) && !has(found, n.soname) {
			errs = append(errs, missing(root, names, n.soname, driver.Version, n.feature))
		}
	}
	return errors.Join(errs...)
}

// libraryNames lists the library directory, and that of libvdpau's backends in it.
func libraryNames(root host.DriverRoot) ([]string, error) {
	entries, err := root.ReadDir(root.LibraryDir)
	if err != nil {
		return nil, fmt.Errorf("listing the driver's libraries: %w", err)
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

// missing tells a driver that is not installed whole from one that was replaced
// under a kernel module that still runs.
func missing(root host.DriverRoot, names []string, soname, version string, feature Feature) error {
	stem, _, _ := strings.Cut(soname, ".so.")
	for _, name := range names {
		// A version has a dot; a SONAME's number has none.
		if other, is := strings.CutPrefix(name, stem+".so."); is && strings.Contains(other, ".") && other != version {
			return fmt.Errorf("%s in %s is of driver %s, the kernel module is %s: load the module of that version, or reboot the node",
				soname, root.NodePath(root.LibraryDir), other, version)
		}
	}
	return fmt.Errorf("%s of driver %s is not in %s, and %s needs it: reinstall the driver with all its parts, or choose other features",
		soname, version, root.NodePath(root.LibraryDir), feature)
}

// ofVersion tells this driver's libraries from what else is in their directory.
// Some have a version of their own.
func ofVersion(name, version string) bool {
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

func otherNames(soname string, features Features) (names []string) {
	for _, also := range alsoNamed {
		if fits, _ := path.Match(also.soname, soname); fits && features.Any(also.feature) && !slices.Contains(names, also.name) {
			names = append(names, also.name)
		}
	}
	return names
}

func has(libraries []Library, soname string) bool {
	return slices.ContainsFunc(libraries, func(l Library) bool { return l.SONAME == soname })
}

// readLibrary reads what a library says of itself. A SONAME that is no file name is not used.
func readLibrary(root host.Root, name string) (Library, error) {
	resolved, err := root.Resolve(name)
	if err != nil {
		return Library{}, err
	}
	if !isPath(root.NodePath(resolved)) {
		return Library{}, errUnusableName
	}
	damaged := func(err error) error {
		return fmt.Errorf("reading %s: %w (the driver is damaged; reinstall it)", root.NodePath(resolved), err)
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
	return Library{NodePath: root.NodePath(resolved), SONAME: soname, Machine: machine}, nil
}
