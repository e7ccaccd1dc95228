package cdi

import (
	"errors"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Parts is all that a spec is made of: what the host has for containers.
type Parts struct {
	Libraries []Library
	Binaries  []Binary
	Control   []Node            // needed with any GPU
	GPUs      map[string][]Node // by UUID; only those that can be given out whole
	Faults    map[string]string // by UUID, why a GPU is not among GPUs
}

// Inspect collects the parts for the GPUs of inv from the node and its driver.
// What concerns one GPU alone is its fault in the Parts; the error, which
// names all that is missing, is for what every GPU needs.
func Inspect(node host.Root, driver host.DriverRoot, inv *gpu.Inventory) (Parts, error) {
	libs, errLibs := libraries(driver, inv.Driver.Version)
	bins, errBins := programs(driver)
	majors, err := readMajors(node)
	if err != nil {
		return Parts{}, errors.Join(errLibs, errBins, err)
	}
	control, errControl := controlNodes(node, majors)
	if err := errors.Join(errLibs, errBins, errControl); err != nil {
		return Parts{}, err
	}
	parts := Parts{
		Libraries: libs,
		Binaries:  bins,
		Control:   control,
		GPUs:      map[string][]Node{},
		Faults:    map[string]string{},
	}
	for _, g := range inv.GPUs {
		if g.PCIBusID == "" {
			continue // its place was not read: the inventory holds the fault
		}
		n, err := gpuNode(node, majors, g.Minor)
		if err != nil {
			parts.Faults[g.UUID] = err.Error()
			continue
		}
		parts.GPUs[g.UUID] = []Node{n}
	}
	return parts, nil
}
