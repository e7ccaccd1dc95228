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

	"github.com/gpucdi/gpucdi/internal/host"
)

// Class is a kind of devices besides GPUs, named by its CDI class.
type Class string

// The classes that can be injected along with GPUs.
const (
	GDS         Class = "gds"          // GPUDirect Storage
	RDMA        Class = "rdma"         // InfiniBand and RoCE adapters
	GDRCopy     Class = "gdrcopy"      // copies to and from GPU memory by the CPU
	IMEXChannel Class = "imex-channel" // memory shared between nodes over NVLink
)

// class is a kind of devices besides GPUs: a CDI class of its own, since who
// asks for a GPU does not ask for these. All of it is told by files and nodes
// of the host. docs/other-devices.md is held to the table.
type class struct {
	name  Class
	what  string
	nodes []string // the host's nodes, which may be patterns; with none of them, the class is not there
	binds []from   // what else containers get, as far as it is there
	csv   string   // files that list further nodes and binds, as a pattern; see readCSV

	// each is what comes before the name of each single device in its node's
	// name; empty when the devices are of use only together.
	each string

	// only is the index of the one device that there can be; empty when they are not GPUs,
	// or several.
	only string

	// with is the device that the agent gives along with GPUs if it is told to;
	// empty for a class that no program of a pod with GPUs needs.
	with string

	gpus bool // whether the devices are GPUs: containers then get the environment that Build gives

	load string // what to do when it is not there
}

// from are files of the host, which may be a pattern, or one directory, that
// are mounted into directories of the container; none: where they are.
type from struct {
	path string
	at   []string
}

var classes = []class{
	{
		name: GDS, what: "GPUDirect Storage",
		nodes: []string{"/dev/nvidia-fs*"}, with: AllDevices,
		binds: []from{{"/run/udev", nil}, {"/etc/cufile.json", nil}},
		load:  "run modprobe nvidia-fs",
	},
	{
		name: RDMA, what: "InfiniBand and RoCE adapters",
		nodes: []string{"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"}, with: AllDevices,
		load: "run modprobe ib_uverbs rdma_ucm",
	},
	{
		name: GDRCopy, what: "GDRCopy",
		nodes: []string{"/dev/gdrdrv"}, with: AllDevices,
		load: "run modprobe gdrdrv",
	},
	{
		// A channel is what keeps one tenant's memory from another's: a pod gets
		// one, and all are only for who asks for them by name.
		name: IMEXChannel, what: "channels to the memory of other nodes' GPUs",
		nodes: []string{"/dev/nvidia-caps-imex-channels/channel*"}, each: "channel", with: "0",
		load: "make one with nvidia-modprobe -i 0",
	},
	{
		name: "nvswitch", what: "NVSwitches, for a container that runs the fabric manager",
		nodes: []string{"/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch[0-9]*"},
		load:  "the node has no NVSwitch, or its driver is not loaded",
	},
	{
		name: "wsl", what: "the GPUs of a Windows host, in WSL2",
		nodes: []string{"/dev/dxg"}, gpus: true,
		binds: []from{
			{"/usr/lib/wsl/drivers", nil}, {"/usr/lib/wsl/lib", nil},
			{"/usr/lib/wsl/lib/*.so*", loaderDirs(hostMachine)}, {"/usr/lib/wsl/lib/nvidia-smi", bin},
		},
		load: "this is not WSL2, or its kernel has no dxgkrnl",
	},
	{
		name: "tegra", what: "the integrated GPU of a Jetson",
		nodes: []string{"/dev/nvhost-ctrl*", "/dev/nvmap"}, only: "0", gpus: true,
		binds: []from{{"/etc/nv_tegra_release", nil}}, // by it programs tell which Jetson this is
		csv:   "/etc/nvidia-container-runtime/host-files-for-container.d/*.csv",
		load:  "this is not a Jetson, or JetPack is not installed",
	},
}

// Classes are the names of all classes besides that of GPUs.
func Classes() []Class {
	names := make([]Class, len(classes))
	for i, c := range classes {
		names[i] = c.name
	}
	return names
}

// ValidateClasses returns everything that is wrong with classes that are to be injected along with GPUs.
func ValidateClasses(chosen []Class) error {
	var with []Class
	for _, c := range classes {
		if c.with != "" {
			with = append(with, c.name)
		}
	}
	var errs []error
	for _, c := range chosen {
		if !slices.Contains(with, c) {
			errs = append(errs, fmt.Errorf("%q is not a class that goes with GPUs: choose of %v", c, with))
		}
	}
	return errors.Join(errs...)
}

// AbsentError says that the node has no devices of a class.
type AbsentError struct {
	Class  Class
	reason string
}

func (e *AbsentError) Error() string { return e.reason }

// BuildClass makes the spec of a class of devices besides GPUs. The error is an
// *AbsentError when the node has none.
func BuildClass(kind string, name Class, node host.Root) (*specs.Spec, error) {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	if i < 0 {
		return nil, fmt.Errorf("building the CDI spec of %s: %q is not a class, choose of %v", kind, name, Classes())
	}
	c := classes[i]
	nodes, err := findNodes(node, c.nodes)
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", c.what, err)
	}
	if len(nodes) == 0 {
		return nil, &AbsentError{name, fmt.Sprintf("looking for %s: there is no %s (%s)", c.what, strings.Join(c.nodes, " and no "), c.load)}
	}
	var parts Parts
	if c.csv != "" {
		var more []Node
		if more, parts, err = readCSVs(node, c.csv); err != nil {
			return nil, fmt.Errorf("looking for %s: %w", c.what, err)
		}
		nodes = distinct(append(nodes, more...))
	}
	binds, err := c.findBinds(node)
	if err != nil {
		return nil, fmt.Errorf("looking for what goes with %s: %w", c.what, err)
	}
	parts.Binds = append(parts.Binds, binds...)
	return finish(c.spec(kind, nodes, parts))
}

func (c class) spec(kind string, nodes []Node, parts Parts) *specs.Spec {
	mounts := mounts(parts)
	spec := &specs.Spec{Kind: kind, ContainerEdits: specs.ContainerEdits{Mounts: mounts}}
	if c.gpus {
		spec.ContainerEdits.Env = environment(mounts)
	}
	for _, n := range nodes {
		name, single := strings.CutPrefix(path.Base(n.Path), c.each)
		if single && c.each != "" && parser.ValidateDeviceName(name) == nil {
			spec.Devices = append(spec.Devices, device(name, []Node{n}))
		}
	}
	if c.only != "" {
		spec.Devices = append(spec.Devices, device(c.only, nodes))
	}
	spec.Devices = append(spec.Devices, device(AllDevices, nodes))
	return spec
}

// AgentKindOf is the CDI kind that the agent writes a class under.
func AgentKindOf(name Class) string {
	return AgentVendor + "/" + string(name)
}

// WithGPUs is the CDI name that containers get with their GPUs, of a class that
// goes with them.
func WithGPUs(name Class) string {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	return AgentKindOf(name) + "=" + classes[i].with
}

// findNodes reads the numbers of the host's nodes: no other place has them all. A node that is gone
// since it was listed, or that cannot be named in a spec, is left out.
func findNodes(node host.Root, patterns []string) ([]Node, error) {
	var nodes []Node
	for _, pattern := range patterns {
		paths, err := node.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			n, err := statNode(node, p)
			if errors.Is(err, fs.ErrNotExist) || !isPath(p) {
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

func (c class) findBinds(node host.Root) ([]Bind, error) {
	var binds []Bind
	for _, f := range c.binds {
		found, err := bindsOf(node, f)
		if err != nil {
			return nil, err
		}
		binds = append(binds, found...)
	}
	return binds, nil
}

func bindsOf(node host.Root, f from) ([]Bind, error) {
	paths, err := node.Glob(f.path)
	if err != nil {
		return nil, err
	}
	if info, err := node.Stat(f.path); err == nil && info.IsDir() {
		paths = []string{f.path}
	}
	var binds []Bind
	for _, p := range paths {
		resolved, err := node.Resolve(p)
		if err != nil {
			return nil, err
		}
		if !isPath(p) || !isPath(node.NodePath(resolved)) {
			continue
		}
		at := []string{p}
		if f.at != nil {
			at = below(f.at, path.Base(p))
		} else if hidesImage(p) {
			return nil, fmt.Errorf("mounting %s: it would hide the files that images have there", p)
		}
		for _, containerPath := range at {
			binds = append(binds, Bind{NodePath: node.NodePath(resolved), ContainerPath: containerPath})
		}
	}
	return binds, nil
}
