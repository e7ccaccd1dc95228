package cdi

import (
	"cmp"
	"errors"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Parts is all that a spec is made of: what the host has for containers.
type Parts struct {
	Libraries []Library
	Binds     []Bind
	Control   []Node               // needed with any GPU
	GPUs      map[string][]Node    // by UUID, those of GPUs and of MIG devices; only what can be given out whole
	Faults    map[string]gpu.Fault // by UUID, why one is not among GPUs
	Hook      string               // the node's path of gpucdi-hook; empty for none
}

// Inspect collects the parts for the GPUs of inv from the node and its driver,
// as far as features need them. What concerns one GPU alone is its fault in the
// Parts; the error, which names all that is missing, is for what every GPU
// needs.
func Inspect(node host.Root, driver host.DriverRoot, inv *gpu.Inventory, features Features) (Parts, error) {
	libraries, errLibraries := libraries(driver, inv.Driver, features)
	binds, errBinds := findSought(driver, features)
	errFiles := errors.Join(errLibraries, errBinds)
	errKernel := checkKernel(node, inv.Driver.Version)
	majors, err := readMajors(node)
	if err != nil {
		return Parts{}, errors.Join(errFiles, errKernel, err)
	}
	control, errControl := controlNodes(node, majors, features)
	if err := errors.Join(errFiles, errKernel, errControl); err != nil {
		return Parts{}, err
	}
	parts := Parts{
		Libraries: libraries,
		Binds:     binds,
		Control:   control,
		GPUs:      map[string][]Node{},
		Faults:    map[string]gpu.Fault{},
	}
	for _, g := range inv.GPUs {
		if !placed(g) {
			continue
		}
		if replaced(g, inv) {
			continue // a container that starts again must not get the other one
		}
		if g.MIG == gpu.MIGEnabled {
			continue // its MIG devices have its node
		}
		nodes, err := gpuNodes(node, majors, g, features)
		parts.add(g.UUID, nodes, err)
	}
	parts.inspectMIG(node, majors, inv)
	return parts, nil
}

func gpuNodes(node host.Root, majors majors, g gpu.GPU, features Features) ([]Node, error) {
	own, err := gpuNode(node, majors, g.Minor)
	if err != nil {
		return nil, err
	}
	nodes := []Node{own}
	if features.Any(Graphics, Display) {
		drm, err := drmNodes(node, g.PCIBusID)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, drm...)
	}
	return nodes, nil
}

// inspectMIG adds the nodes of the MIG devices.
func (p *Parts) inspectMIG(node host.Root, majors majors, inv *gpu.Inventory) {
	if !slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool { return len(g.MIGDevices) > 0 }) {
		return
	}
	caps, errCaps := readCapabilities(node)
	for _, g := range inv.GPUs {
		if !placed(g) || replaced(g, inv) {
			continue
		}
		for _, m := range g.MIGDevices {
			nodes, err := migNodes(node, majors, caps, g, m)
			p.add(m.UUID, nodes, cmp.Or(errCaps, err))
		}
	}
}

// placed says whether the driver says where the GPU is. If not, the inventory
// holds the fault.
func placed(g gpu.GPU) bool { return g.PCIBusID != "" && g.Minor != gpu.MinorUnknown }

// add adds the nodes of a GPU or MIG device, or its fault. One name that no spec can have would make
// the spec of all GPUs invalid.
func (p *Parts) add(uuid string, nodes []Node, err error) {
	const reload = "reload the driver, or use another version"
	var fault gpu.Fault
	_, twice := p.GPUs[uuid]
	if invalid := parser.ValidateDeviceName(uuid); invalid != nil {
		fault = gpu.Fault{Code: gpu.FaultUnreadable, Message: "its UUID is no CDI device name: " + invalid.Error(), Remedy: reload}
	} else if twice {
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

// replaced says whether a GPU is gone and another one has its node now.
func replaced(g gpu.GPU, inv *gpu.Inventory) bool {
	return g.Fault.Code == gpu.FaultGone && slices.ContainsFunc(inv.GPUs, func(other gpu.GPU) bool {
		return other.Fault.Code != gpu.FaultGone && other.Minor == g.Minor
	})
}
