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

// CDI vendors.
const (
	// AgentVendor is the vendor of the agent's specs. Other tools do not use it: a device that two specs define is
	// unresolvable.
	AgentVendor = "gpucdi.dev"
	// UserVendor is the default vendor of specs of gpucdi generate, the one that users pass to --device.
	UserVendor = "nvidia.com"
)

// CDI kinds of GPUs.
const (
	AgentKind = AgentVendor + "/gpu"
	UserKind  = UserVendor + "/gpu"
)

// AllDevices is the name of the CDI device that contains all healthy GPUs and MIG devices. A CUDA process uses
// only the first MIG device of those it can access.
const AllDevices = "all"

// MonitorDevice is the name of the CDI device, only in the agent's spec, that contains all GPUs, including those with a
// fault or in MIG mode, for monitoring containers.
const MonitorDevice = "monitor"

// NameStrategy selects the CDI device names of GPUs and MIG devices.
type NameStrategy string

// Name strategies.
const (
	ByIndex NameStrategy = "index" // "0", or "0:1" for a MIG device
	ByUUID  NameStrategy = "uuid"  // "GPU-…" or "MIG-…"
)

// Build returns the spec of kind for the GPUs and MIG devices of inv that are in parts. Each has one device per name
// strategy. The spec also has AllDevices if any are healthy, and MonitorDevice if kind is AgentKind. A GPU with a
// fault keeps its device, because a container that holds it may restart. Build is pure: equal arguments give equal
// specs. It returns an error if parts has no GPU or MIG device of inv, because a CDI spec requires a device.
func Build(kind string, inv *gpu.Inventory, parts Parts, strategies []NameStrategy) (*specs.Spec, error) {
	spec := newSpec(kind, inv, parts)
	all, monitored := []DeviceNode{}, slices.Clone(parts.Monitor)
	for _, d := range namedDevices(inv) {
		nodes, ok := parts.GPUs[d.uuid]
		if !ok {
			continue
		}
		for _, strategy := range strategies {
			spec.Devices = append(spec.Devices, device(d.name(strategy), nodes))
		}
		monitored = append(monitored, nodes...)
		if d.fault.None() {
			all = append(all, nodes...)
		}
	}
	if len(spec.Devices) == 0 {
		return nil, fmt.Errorf("building the CDI spec of %s: no usable GPUs", kind)
	}
	if len(all) > 0 {
		spec.Devices = append(spec.Devices, device(AllDevices, deduplicate(all)))
	}
	if kind == AgentKind {
		spec.Devices = append(spec.Devices, device(MonitorDevice, deduplicate(monitored)))
	}
	return setVersion(spec)
}

// newSpec returns a spec without devices.
func newSpec(kind string, inv *gpu.Inventory, parts Parts) *specs.Spec {
	mounts := mounts(parts)
	return &specs.Spec{
		Kind: kind,
		ContainerEdits: specs.ContainerEdits{
			Env:         environment(mounts),
			DeviceNodes: deviceNodes(parts.Control),
			Mounts:      mounts,
			Hooks:       hooks(inv, parts),
		},
	}
}

// QualifiedNames returns the fully qualified names of the devices of a spec.
func QualifiedNames(spec *specs.Spec) []string {
	names := deviceNames(spec)
	for i := range names {
		names[i] = spec.Kind + "=" + names[i]
	}
	return names
}

// setVersion sets the lowest CDI version that supports the spec, for compatibility with old runtimes.
func setVersion(spec *specs.Spec) (*specs.Spec, error) {
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("choosing the CDI version of %s: %w", spec.Kind, err)
	}
	spec.Version = version
	return spec, nil
}

// hideGPUs overrides the image's NVIDIA_VISIBLE_DEVICES, which makes an NVIDIA container runtime on the same node
// inject GPUs.
const hideGPUs = "NVIDIA_VISIBLE_DEVICES=void"

// libcudaDir is a loader directory whose path does not depend on the architecture. Debian and Ubuntu images have no
// libraries there, so a compiler with its own sysroot can search it for libcuda without finding the image's libc.
const libcudaDir = "/usr/lib64"

// environment returns the environment variables for containers with GPUs and these mounts. Triton, which
// torch.compile, vLLM and SGLang use, reads the directory of libcuda from TRITON_LIBCUDA_PATH, and otherwise from the
// image's ld.so.cache, which does not list the mounts. Triton passes the value to the linker as one directory.
// Variables that other programs read, such as LD_LIBRARY_PATH, are not set: they would override the image's values.
func environment(mounts []*specs.Mount) []string {
	env := []string{hideGPUs}
	if slices.ContainsFunc(mounts, isLibcuda) {
		env = append(env, "TRITON_LIBCUDA_PATH="+libcudaDir)
	}
	return env
}

// hostMachine is the ELF machine of this program, and so of the node.
var hostMachine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// namedDevice is an allocatable GPU or MIG device.
type namedDevice struct {
	index, uuid string
	fault       gpu.Fault
}

// namedDevices returns the allocatable GPUs and MIG devices. A GPU in MIG mode is usable only through its MIG devices.
func namedDevices(inv *gpu.Inventory) []namedDevice {
	var all []namedDevice
	for _, g := range inv.GPUs {
		index := strconv.Itoa(g.Index)
		if g.MIG != gpu.MIGEnabled {
			all = append(all, namedDevice{index, g.UUID, g.Fault})
		}
		for _, m := range g.MIGDevices {
			all = append(all, namedDevice{index + ":" + strconv.Itoa(m.Index), m.UUID, m.Fault})
		}
	}
	return all
}

func (d namedDevice) name(s NameStrategy) string {
	if s == ByIndex {
		return d.index
	}
	return d.uuid
}

// deduplicate removes repeated nodes and keeps the order. MIG devices share the node of their GPU.
func deduplicate(nodes []DeviceNode) []DeviceNode {
	var unique []DeviceNode
	for _, n := range nodes {
		if !slices.Contains(unique, n) {
			unique = append(unique, n)
		}
	}
	return unique
}

func device(name string, nodes []DeviceNode) specs.Device {
	return specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{DeviceNodes: deviceNodes(nodes)}}
}

func deviceNodes(nodes []DeviceNode) []*specs.DeviceNode {
	converted := make([]*specs.DeviceNode, 0, len(nodes))
	for _, n := range nodes {
		converted = append(converted, &specs.DeviceNode{Path: n.Path, Type: "c", Major: n.Major, Minor: n.Minor})
	}
	return converted
}

func mounts(parts Parts) []*specs.Mount {
	var all []*specs.Mount
	for _, b := range parts.Binds {
		all = append(all, bindMount(b.HostPath, b.ContainerPath))
	}
	for _, l := range parts.Libraries {
		for _, dir := range loaderDirs(l.Machine) {
			for _, name := range append([]string{l.SONAME}, l.Aliases...) {
				all = append(all, bindMount(l.HostPath, path.Join(dir, name)))
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *specs.Mount) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	// Several driver files may reference one library, and a library listed by JetPack may be in a loader directory.
	return slices.CompactFunc(all, func(a, b *specs.Mount) bool { return a.ContainerPath == b.ContainerPath })
}

// hookTimeout is in seconds. The hook runs for milliseconds.
const hookTimeout = 10

// hooks returns the createContainer hook that adds the libraries to the loader configuration of the container; none
// unless parts.Hook is set.
func hooks(inv *gpu.Inventory, parts Parts) []*specs.Hook {
	if parts.Hook == "" {
		return nil
	}
	args := []string{path.Base(parts.Hook)}
	if supportsNewerCUDA(inv, parts) {
		args = append(args, "--driver-version="+inv.Driver.Version)
	}
	if hasSONAME(parts.Libraries, "libEGL_nvidia.so.0") {
		args = append(args, "--graphics")
	}
	for _, l := range parts.Libraries {
		for _, name := range append([]string{l.SONAME}, l.Aliases...) {
			if path.Base(name) == name { // ld.so.cache contains only file names
				args = append(args, path.Join(loaderDirs(l.Machine)[0], name))
			}
		}
	}
	return []*specs.Hook{{
		HookName: "createContainer",
		Path:     parts.Hook,
		Args:     args,
		// If a hook has no environment, runtimes may run it with the image's (CVE-2025-23266).
		Env:     []string{"LC_ALL=C"},
		Timeout: new(hookTimeout),
	}}
}

// supportsNewerCUDA reports whether all GPUs of the spec support a libcuda that is newer than the driver (CUDA forward
// compatibility). GeForce and TITAN GPUs do not (CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE).
func supportsNewerCUDA(inv *gpu.Inventory, parts Parts) bool {
	return !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool {
		_, included := parts.GPUs[g.UUID]
		return included && (strings.Contains(g.Product, "GeForce") || strings.Contains(g.Product, "TITAN"))
	})
}

// loaderDirs returns the default library directories of glibc's dynamic loader: first the one of Debian and Ubuntu,
// then the one of RHEL and SUSE. The glibc of any image finds libraries that are in both, without running ldconfig.
func loaderDirs(machine elf.Machine) []string {
	if machine == elf.EM_AARCH64 {
		return []string{"/usr/lib/aarch64-linux-gnu", libcudaDir}
	}
	return []string{"/usr/lib/x86_64-linux-gnu", libcudaDir}
}

// bindMount returns a read-only mount. rprivate stops mount propagation between the container and the host.
func bindMount(hostPath, containerPath string) *specs.Mount {
	return &specs.Mount{
		HostPath:      hostPath,
		ContainerPath: containerPath,
		Options:       []string{"ro", "nosuid", "nodev", "rbind", "rprivate"},
	}
}
