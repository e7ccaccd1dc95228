package cdi

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Parts are the contents of a spec: driver files and device nodes of the host.
type Parts struct {
	Features  Features // the selected ones, or the default ones that the driver has
	Libraries []Library
	Binds     []Bind
	Control   []DeviceNode            // control nodes, for containers with any GPU
	GPUs      map[string][]DeviceNode // by UUID of the GPU or MIG device
	Faults    map[string]gpu.Fault    // by UUID; these GPUs and MIG devices are not in GPUs
	Monitor   []DeviceNode            // only for MonitorDevice: GPUs in MIG mode, and the capability to monitor them
	Hook      string                  // host path of gpucdi-hook; empty for none

	// Shared is set if device nodes do not identify GPUs: all GPUs of the node have the same ones, and containers without
	// a GPU may have them.
	Shared bool
}

// Inspect collects the parts that features require for the GPUs of inv. A problem with one GPU is reported in Faults.
// The error lists all problems that affect every GPU.
func Inspect(root host.Root, driver host.DriverRoot, inv *gpu.Inventory, features Features) (Parts, error) {
	if inv.Platform != "" {
		return inspectPlatform(root, inv)
	}
	if len(features) == 0 {
		features = DefaultFeatures(driver, inv.Driver)
	}
	libraries, errLibraries := findLibraries(driver, inv.Driver, features)
	binds, errBinds := findDriverFiles(driver, features)
	errFiles := errors.Join(errLibraries, errBinds)
	errKernel := checkKernel(root, inv.Driver.Version)
	majors, err := readMajors(root)
	if err != nil {
		return Parts{}, errors.Join(errFiles, errKernel, err)
	}
	control, errControl := controlNodes(root, majors, features)
	if err := errors.Join(errFiles, errKernel, errControl); err != nil {
		return Parts{}, err
	}
	parts := Parts{
		Features:  features,
		Libraries: libraries,
		Binds:     binds,
		Control:   control,
		GPUs:      map[string][]DeviceNode{},
		Faults:    map[string]gpu.Fault{},
	}
	for _, g := range inv.GPUs {
		if !located(g) {
			continue
		}
		if replaced(g, inv) {
			continue // a container that restarts must not get the other GPU
		}
		if g.MIG == gpu.MIGEnabled {
			continue // its MIG devices include its node
		}
		nodes, err := gpuNodes(root, majors, g, features)
		parts.add(g.UUID, nodes, err)
	}
	parts.inspectMIG(root, majors, inv)
	return parts, nil
}

// DeviceNumbers returns the device numbers (unix.Mkdev) of each GPU and MIG device, by UUID, without the UUIDs in
// except. It omits DRM nodes, which depend on the features. It returns none if p is Shared.
func (p Parts) DeviceNumbers(except ...string) map[string][]uint64 {
	numbers := map[string][]uint64{}
	for uuid, nodes := range p.GPUs {
		if p.Shared || slices.Contains(except, uuid) {
			continue
		}
		for _, n := range nodes {
			if strings.HasPrefix(n.Path, "/dev/nvidia") {
				numbers[uuid] = append(numbers[uuid], unix.Mkdev(uint32(n.Major), uint32(n.Minor)))
			}
		}
	}
	return numbers
}

func gpuNodes(root host.Root, majors majors, g gpu.GPU, features Features) ([]DeviceNode, error) {
	own, err := gpuNode(root, majors, g.Minor)
	if err != nil {
		return nil, err
	}
	nodes := []DeviceNode{own}
	if features.Any(Graphics, Display) {
		drm, err := drmNodes(root, g.PCIBusID)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, drm...)
	}
	return nodes, nil
}

// inspectMIG adds the MIG devices, and the nodes for monitoring their GPUs.
func (p *Parts) inspectMIG(root host.Root, majors majors, inv *gpu.Inventory) {
	if !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool { return g.MIG == gpu.MIGEnabled || len(g.MIGDevices) > 0 }) {
		return
	}
	caps, errCaps := readCapabilities(root)
	for _, g := range inv.GPUs {
		if !located(g) || replaced(g, inv) {
			continue
		}
		for _, m := range g.MIGDevices {
			nodes, err := migNodes(root, majors, caps, g, m)
			p.add(m.UUID, nodes, cmp.Or(errCaps, err))
		}
	}
	p.Monitor = monitorNodes(root, majors, caps, inv)
}

// located reports whether the driver reported the PCI address and minor number of the GPU. If not, the GPU already has
// a fault in the inventory.
func located(g gpu.GPU) bool { return g.PCIBusID != "" && g.Minor != gpu.MinorUnknown }

// add adds the nodes of a GPU or MIG device, or its fault. A single invalid or duplicate device name would invalidate
// the spec for all GPUs.
func (p *Parts) add(uuid string, nodes []DeviceNode, err error) {
	const reload = "reload the driver, or install another version"
	var fault gpu.Fault
	_, duplicate := p.GPUs[uuid]
	if invalid := validateName(uuid); invalid != nil {
		fault = gpu.Fault{Code: gpu.FaultUnreadable, Message: "UUID is not a valid CDI device name: " + invalid.Error(), Remedy: reload}
	} else if duplicate {
		fault = gpu.Fault{Code: gpu.FaultUnreadable, Message: "another GPU has the same UUID", Remedy: reload}
	} else if err != nil {
		fault = gpu.Fault{Code: gpu.FaultDeviceNode, Message: err.Error()}
	}
	if !fault.None() {
		delete(p.GPUs, uuid)
		p.Faults[uuid] = fault
		return
	}
	if p.Faults[uuid].None() {
		p.GPUs[uuid] = nodes
	}
}

// replaced reports whether the minor number of a GPU is from an earlier inventory and now belongs to another GPU.
func replaced(g gpu.GPU, inv *gpu.Inventory) bool {
	earlier := func(g gpu.GPU) bool { return g.Fault.Code == gpu.FaultGone || g.Partial }
	return earlier(g) && slices.ContainsFunc(inv.GPUs, func(other gpu.GPU) bool {
		return !earlier(other) && other.Minor == g.Minor
	})
}
