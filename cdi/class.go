package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Class is the CDI class of auxiliary devices, such as network adapters, or of the GPUs of a platform.
type Class string

// Classes that can be injected along with GPUs.
const (
	GDS         Class = "gds"          // GPUDirect Storage
	RDMA        Class = "rdma"         // InfiniBand and RoCE adapters
	GDRCopy     Class = "gdrcopy"      // CPU copies to and from GPU memory
	IMEXChannel Class = "imex-channel" // memory shared between nodes over NVLink
)

// class defines a Class. CDI classes are separate, so that requesting a GPU does not inject other devices. The devices
// are discovered only from files and device nodes of the host. docs/other-devices.md has the same table.
type class struct {
	name        Class
	description string
	nodes       []string    // patterns of device nodes; the class is absent if none matches
	binds       []hostFiles // optional mounts
	csv         string      // pattern of files that list further device nodes and mounts; see readCSVs

	// devicePrefix precedes the device name in the base name of a device node. Empty if the class has no CDI device for
	// each node.
	devicePrefix string

	// onlyDevice is a second name of AllDevices, for a class of which a host has a single device. Empty for none.
	onlyDevice string

	// withGPUs is the device that the agent injects along with GPUs if configured. Empty for a class that pods with
	// GPUs do not use.
	withGPUs string

	// platform is set if the devices are the GPUs of a platform. Inspect then uses the class, and BuildClass sets the same
	// environment as Build.
	platform gpu.Platform

	// required are the device nodes without which a GPU of the platform is faulty: at least one of each element.
	required [][]string

	remedy string // how to create missing devices
}

// hostFiles are files to mount.
type hostFiles struct {
	path string   // a pattern, or a directory
	dirs []string // directories of the container; nil: the same path as on the host
}

var classes = []class{
	{
		name: GDS, description: "GPUDirect Storage",
		nodes: []string{"/dev/nvidia-fs*"}, withGPUs: AllDevices,
		binds:  []hostFiles{{"/run/udev", nil}, {"/etc/cufile.json", nil}},
		remedy: "run modprobe nvidia-fs",
	},
	{
		name: RDMA, description: "InfiniBand and RoCE adapters",
		nodes: []string{"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"}, withGPUs: AllDevices,
		remedy: "run modprobe -a ib_uverbs rdma_ucm",
	},
	{
		name: GDRCopy, description: "GDRCopy",
		nodes: []string{"/dev/gdrdrv"}, withGPUs: AllDevices,
		remedy: "run modprobe gdrdrv",
	},
	{
		// Channels isolate the memory of tenants, so the agent injects a single one; AllDevices must be requested by name.
		name: IMEXChannel, description: "IMEX channels to GPU memory of other nodes",
		nodes: []string{"/dev/nvidia-caps-imex-channels/channel*"}, devicePrefix: "channel", withGPUs: "0",
		remedy: "create one with nvidia-modprobe -i 0",
	},
	{
		name: "nvswitch", description: "NVSwitches, for a container that runs the fabric manager",
		nodes:  []string{"/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch[0-9]*"},
		remedy: "load the NVSwitch driver, if the node has NVSwitches",
	},
	{
		name: "wsl", description: "GPUs of the Windows host, in WSL2",
		nodes: []string{"/dev/dxg"}, platform: gpu.WSL2, required: [][]string{{"/dev/dxg"}},
		binds: []hostFiles{
			{"/usr/lib/wsl/drivers", nil}, {"/usr/lib/wsl/lib", nil},
			{"/usr/lib/wsl/lib/*.so*", loaderDirs(hostMachine)}, {"/usr/lib/wsl/lib/nvidia-smi", bin},
		},
		remedy: "run on WSL2, with a kernel that has dxgkrnl",
	},
	{
		name: "tegra", description: "integrated GPU of a Jetson",
		nodes: []string{"/dev/nvhost-ctrl*", "/dev/nvmap"}, onlyDevice: "0", platform: gpu.Jetson,
		// The memory node, and the GPU node: before JetPack 6, since JetPack 6, or on Thor.
		required: [][]string{{"/dev/nvmap"}, {"/dev/nvhost-ctrl-gpu", "/dev/nvgpu/igpu0/ctrl", "/dev/nvidia0"}},
		binds:    []hostFiles{{"/etc/nv_tegra_release", nil}}, // read by programs to identify the Jetson
		csv:      "/etc/nvidia-container-runtime/host-files-for-container.d/*.csv",
		remedy:   "run on a Jetson, with JetPack installed",
	},
}

// Classes returns the names of all classes, in documentation order.
func Classes() []Class {
	names := make([]Class, len(classes))
	for i, c := range classes {
		names[i] = c.name
	}
	return names
}

// ValidateClasses returns an error for each class that cannot be injected along with GPUs.
func ValidateClasses(selected []Class) error {
	var supported []Class
	for _, c := range classes {
		if c.withGPUs != "" {
			supported = append(supported, c.name)
		}
	}
	var errs []error
	for _, c := range selected {
		if !slices.Contains(supported, c) {
			errs = append(errs, fmt.Errorf("class %q cannot be injected along with GPUs; supported classes: %v", c, supported))
		}
	}
	return errors.Join(errs...)
}

// AbsentError reports that the node has no devices of a class.
type AbsentError struct {
	Class  Class
	reason string
}

func (e *AbsentError) Error() string { return e.reason }

// BuildClass returns the spec of a class, under the given CDI kind. It returns an *AbsentError if the node has no
// devices of the class.
func BuildClass(kind string, name Class, root host.Root) (*specs.Spec, error) {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	if i < 0 {
		return nil, fmt.Errorf("building the CDI spec of %s: unknown class %q; supported classes: %v", kind, name, Classes())
	}
	c := classes[i]
	nodes, parts, err := c.discover(root)
	if err != nil {
		return nil, err
	}
	return setVersion(c.spec(kind, nodes, parts))
}

// discover returns the device nodes and files of a class. It returns an *AbsentError if there are no device nodes.
func (c class) discover(root host.Root) (nodes []DeviceNode, parts Parts, err error) {
	if nodes, err = findNodes(root, c.nodes); err != nil {
		return nil, Parts{}, fmt.Errorf("discovering %s: %w", c.description, err)
	}
	if len(nodes) == 0 {
		return nil, Parts{}, &AbsentError{c.name, fmt.Sprintf("discovering %s: no character device %s found; %s",
			c.description, strings.Join(c.nodes, " or "), c.remedy)}
	}
	if c.csv != "" {
		var listed []DeviceNode
		if listed, parts, err = readCSVs(root, c.csv); err != nil {
			return nil, Parts{}, fmt.Errorf("discovering %s: %w", c.description, err)
		}
		nodes = deduplicate(append(nodes, listed...))
	}
	binds, err := c.findBinds(root)
	if err != nil {
		return nil, Parts{}, fmt.Errorf("finding the files to mount for %s: %w", c.description, err)
	}
	parts.Binds = append(parts.Binds, binds...)
	return nodes, parts, nil
}

func (c class) spec(kind string, nodes []DeviceNode, parts Parts) *specs.Spec {
	mounts := mounts(parts)
	spec := &specs.Spec{Kind: kind, ContainerEdits: specs.ContainerEdits{Mounts: mounts}}
	if c.platform != "" {
		spec.ContainerEdits.Env = environment(mounts)
	}
	for _, n := range nodes {
		name, ok := strings.CutPrefix(path.Base(n.Path), c.devicePrefix)
		if ok && c.devicePrefix != "" && parser.ValidateDeviceName(name) == nil {
			spec.Devices = append(spec.Devices, device(name, []DeviceNode{n}))
		}
	}
	if c.onlyDevice != "" {
		spec.Devices = append(spec.Devices, device(c.onlyDevice, nodes))
	}
	spec.Devices = append(spec.Devices, device(AllDevices, nodes))
	return spec
}

// AgentClassKind returns the CDI kind of the agent's spec of a class.
func AgentClassKind(name Class) string {
	return AgentVendor + "/" + string(name)
}

// AuxiliaryDeviceName returns the fully qualified name of the CDI device that the agent injects along with GPUs for a
// class. The class must satisfy ValidateClasses.
func AuxiliaryDeviceName(name Class) string {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	return AgentClassKind(name) + "=" + classes[i].withGPUs
}

// CheckAuxiliaryDevice returns an error if the spec of a class lacks the device of AuxiliaryDeviceName: runtimes do
// not start containers that request a missing device.
func CheckAuxiliaryDevice(name Class, spec *specs.Spec) error {
	_, _, injected := parser.ParseDevice(AuxiliaryDeviceName(name))
	if slices.ContainsFunc(spec.Devices, func(d specs.Device) bool { return d.Name == injected }) {
		return nil
	}
	return fmt.Errorf("the node has no device %s of class %s", injected, name)
}

// findNodes returns the device nodes that match patterns. Device numbers are read from the nodes, because no other
// source has all of them. Nodes that disappear in the meantime, or whose paths are not valid in a spec, and files that
// are not character devices are skipped.
func findNodes(root host.Root, patterns []string) ([]DeviceNode, error) {
	var nodes []DeviceNode
	for _, pattern := range patterns {
		paths, err := root.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			n, err := statNode(root, p)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDevice) || !isPath(p) {
				continue
			}
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

func (c class) findBinds(root host.Root) ([]Bind, error) {
	var binds []Bind
	for _, f := range c.binds {
		found, err := bindsOf(root, f)
		if err != nil {
			return nil, err
		}
		binds = append(binds, found...)
	}
	return binds, nil
}

func bindsOf(root host.Root, f hostFiles) ([]Bind, error) {
	paths, err := root.Glob(f.path)
	if err != nil {
		return nil, err
	}
	if info, err := root.Stat(f.path); err == nil && info.IsDir() {
		paths = []string{f.path}
	}
	var binds []Bind
	for _, p := range paths {
		resolved, err := root.Resolve(p)
		if err != nil {
			return nil, err
		}
		if !isPath(p) || !isPath(root.NodePath(resolved)) {
			continue
		}
		containerPaths := []string{p}
		if f.dirs != nil {
			containerPaths = below(f.dirs, path.Base(p))
		} else if hidesImage(p) {
			return nil, fmt.Errorf("mounting %s: would hide files of the image", p)
		}
		for _, containerPath := range containerPaths {
			binds = append(binds, Bind{HostPath: root.NodePath(resolved), ContainerPath: containerPath})
		}
	}
	return binds, nil
}
