package cdi

import (
	"debug/elf"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/gpu"
)

// The vendors of the CDI kinds that specs are written under.
const (
	// AgentVendor is ours alone: a spec that another tool left on the host
	// cannot define the same device, which would make it unresolvable.
	AgentVendor = "gpucdi.dev"
	// UserVendor is what people type after --device.
	UserVendor = "nvidia.com"
)

// The CDI kinds of GPUs.
const (
	AgentKind = AgentVendor + "/gpu"
	UserKind  = UserVendor + "/gpu"
)

// AllDevices is the CDI device name that stands for every GPU at once, and for
// every MIG device: who asks for all means all that the node has. A CUDA
// program still uses but one MIG device, the first.
const AllDevices = "all"

// Name is a way to name a GPU or a MIG device in a spec.
type Name string

// The ways to name them: by "0" or "GPU-…", by "0:1" or "MIG-…".
const (
	ByIndex Name = "index"
	ByUUID  Name = "uuid"
)

// Build returns the spec of kind for the GPUs and MIG devices of inv that are in parts: one
// device for each of the given names, and AllDevices for the healthy ones together. A GPU with a
// fault keeps its device, because a pod may hold it. Build is pure: equal arguments give equal
// specs. Without any GPU it returns an error, because CDI does not allow a spec without devices.
func Build(kind string, inv *gpu.Inventory, parts Parts, names []Name) (*specs.Spec, error) {
	mounts := mounts(parts)
	spec := &specs.Spec{
		Kind: kind,
		ContainerEdits: specs.ContainerEdits{
			Env:         environment(mounts),
			DeviceNodes: deviceNodes(parts.Control),
			Mounts:      mounts,
			Hooks:       hooks(inv, parts),
		},
	}
	var all []Node
	for _, e := range entries(inv) {
		nodes, ok := parts.GPUs[e.uuid]
		if !ok {
			continue
		}
		for _, name := range names {
			spec.Devices = append(spec.Devices, device(e.name(name), nodes))
		}
		if e.fault.None() {
			all = append(all, nodes...)
		}
	}
	if len(spec.Devices) == 0 {
		return nil, fmt.Errorf("building the CDI spec of %s: no GPU can be given out", kind)
	}
	if len(all) > 0 {
		spec.Devices = append(spec.Devices, device(AllDevices, distinct(all)))
	}

	return finish(spec)
}

// finish gives a spec the lowest version that has all it uses, so that the
// oldest runtimes read it.
func finish(spec *specs.Spec) (*specs.Spec, error) {
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("choosing the CDI version of %s: %w", spec.Kind, err)
	}
	spec.Version = version
	return spec, nil
}

// hideGPUs keeps an NVIDIA runtime that is also installed on the node from adding GPUs, whatever
// the image requests.
const hideGPUs = "NVIDIA_VISIBLE_DEVICES=void"

// libcudaDir is the loader directory whose path is the same on every machine and which on Debian
// and Ubuntu holds no library of the image: a compiler with a sysroot of its own that searches it
// finds the driver there, and not the image's libc.
const libcudaDir = "/usr/lib64"

// environment returns the variables for containers with GPUs that get these mounts. Triton, and
// with it torch.compile, vLLM and SGLang, reads the directory of libcuda from TRITON_LIBCUDA_PATH,
// and else from the image's ld.so.cache, which does not list the mounts. The value is one
// directory, which Triton passes to the linker. Variables that other programs read, such as
// LD_LIBRARY_PATH, stay the image's: a value here would replace it.
func environment(mounts []*specs.Mount) []string {
	env := []string{hideGPUs}
	isLibcuda := func(m *specs.Mount) bool { return m.ContainerPath == path.Join(libcudaDir, "libcuda.so.1") }
	if slices.ContainsFunc(mounts, isLibcuda) {
		env = append(env, "TRITON_LIBCUDA_PATH="+libcudaDir)
	}
	return env
}

// hostMachine is what libraries of this machine are for.
var hostMachine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// entry is a GPU or a MIG device.
type entry struct {
	index, uuid string
	fault       gpu.Fault
}

// entries are what can be given out. A GPU in MIG mode cannot: with its node
// alone a program finds nothing to use.
func entries(inv *gpu.Inventory) []entry {
	var all []entry
	for _, g := range inv.GPUs {
		index := strconv.Itoa(g.Index)
		if g.MIG != gpu.MIGEnabled {
			all = append(all, entry{index, g.UUID, g.Fault})
		}
		for _, m := range g.MIGDevices {
			all = append(all, entry{index + ":" + strconv.Itoa(m.Index), m.UUID, m.Fault})
		}
	}
	return all
}

func (e entry) name(n Name) string {
	if n == ByIndex {
		return e.index
	}
	return e.uuid
}

// distinct leaves each node out that came before: MIG devices share their GPU's.
func distinct(nodes []Node) []Node {
	var once []Node
	for _, n := range nodes {
		if !slices.Contains(once, n) {
			once = append(once, n)
		}
	}
	return once
}

func device(name string, nodes []Node) specs.Device {
	return specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{DeviceNodes: deviceNodes(nodes)}}
}

func deviceNodes(nodes []Node) []*specs.DeviceNode {
	made := make([]*specs.DeviceNode, 0, len(nodes))
	for _, n := range nodes {
		made = append(made, &specs.DeviceNode{Path: n.Path, Type: "c", Major: n.Major, Minor: n.Minor})
	}
	return made
}

func mounts(parts Parts) []*specs.Mount {
	var made []*specs.Mount
	for _, b := range parts.Binds {
		made = append(made, bind(b.NodePath, b.ContainerPath))
	}
	for _, l := range parts.Libraries {
		for _, dir := range loaderDirs(l.Machine) {
			for _, name := range append([]string{l.SONAME}, l.Also...) {
				made = append(made, bind(l.NodePath, path.Join(dir, name)))
			}
		}
	}
	slices.SortStableFunc(made, func(a, b *specs.Mount) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	// A library may be named by several files, and where loaders search anyway.
	return slices.CompactFunc(made, func(a, b *specs.Mount) bool { return a.ContainerPath == b.ContainerPath })
}

// hookTimeout is in seconds. The hook takes milliseconds.
const hookTimeout = 10

// hooks are none, unless somebody wants the image's loader to be led to the libraries.
func hooks(inv *gpu.Inventory, parts Parts) []*specs.Hook {
	if parts.Hook == "" {
		return nil
	}
	args := []string{path.Base(parts.Hook)}
	if takeNewerCUDA(inv, parts) {
		args = append(args, "--driver-version="+inv.Driver.Version)
	}
	if has(parts.Libraries, "libEGL_nvidia.so.0") {
		args = append(args, "--graphics")
	}
	for _, l := range parts.Libraries {
		for _, name := range append([]string{l.SONAME}, l.Also...) {
			if path.Base(name) == name { // the cache is asked for nothing else
				args = append(args, path.Join(loaderDirs(l.Machine)[0], name))
			}
		}
	}
	return []*specs.Hook{{
		HookName: "createContainer",
		Path:     parts.Hook,
		Args:     args,
		// Without an environment in the spec, runtimes have handed hooks the image's own
		// (CVE-2025-23266).
		Env:     []string{"LC_ALL=C"},
		Timeout: new(hookTimeout),
	}}
}

// takeNewerCUDA says whether the GPUs work with a libcuda that is newer than the driver. CUDA
// refuses it on GeForce and TITAN (CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE).
func takeNewerCUDA(inv *gpu.Inventory, parts Parts) bool {
	return !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool {
		_, given := parts.GPUs[g.UUID]
		return given && (strings.Contains(g.Product, "GeForce") || strings.Contains(g.Product, "TITAN"))
	})
}

// loaderDirs returns the directories that glibc's dynamic loader searches without a cache or
// configuration: on Debian and Ubuntu, and on RHEL and SUSE. With a library in both, no hook has
// to run ldconfig inside the container.
func loaderDirs(machine elf.Machine) []string {
	if machine == elf.EM_AARCH64 {
		return []string{"/usr/lib/aarch64-linux-gnu", libcudaDir}
	}
	return []string{"/usr/lib/x86_64-linux-gnu", libcudaDir}
}

// bind mounts one file. rprivate keeps later mounts of the container from
// reaching the host.
func bind(nodePath, containerPath string) *specs.Mount {
	return &specs.Mount{
		HostPath:      nodePath,
		ContainerPath: containerPath,
		Options:       []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
	}
}
