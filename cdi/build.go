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

// Build makes the spec of kind for those GPUs and MIG devices of inv that are in
// parts, each under all the given names, and for all the healthy ones together.
// One with a fault keeps its device: a pod may hold it. Build is pure: equal
// arguments give equal specs. A spec without any device is not valid CDI, so no
// GPU at all is an error.
func Build(kind string, inv *gpu.Inventory, parts Parts, names []Name) (*specs.Spec, error) {
	spec := &specs.Spec{
		Kind: kind,
		ContainerEdits: specs.ContainerEdits{
			Env:         []string{hideGPUs},
			DeviceNodes: deviceNodes(parts.Control),
			Mounts:      mounts(parts),
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
		if e.fault == "" {
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

// hideGPUs is for an NVIDIA runtime that is installed beside us: it must add
// nothing, whatever the image asks for.
const hideGPUs = "NVIDIA_VISIBLE_DEVICES=void"

// hostMachine is what libraries of this machine are for.
var hostMachine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// entry is a GPU or a MIG device.
type entry struct{ index, uuid, fault string }

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

// loaderDirs are the directories that dynamic loaders search without any
// cache or configuration: Debian's and Ubuntu's, and RHEL's and SUSE's. With
// a library in both, no hook has to run ldconfig inside the container.
func loaderDirs(machine elf.Machine) []string {
	if machine == elf.EM_AARCH64 {
		return []string{"/usr/lib/aarch64-linux-gnu", "/usr/lib64"}
	}
	return []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib64"}
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
