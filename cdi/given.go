package cdi

import (
	"fmt"
	"path"
	"slices"

	"tags.cncf.io/container-device-interface/specs-go"
)

// Given is what a container gets with a device.
type Given struct {
	Nodes []string // device nodes
	Files []string // the names of the files that are mounted, libraries above all
}

// Given tells what containers get with each device of the spec on disk.
func (f *File) Given() (map[string]Given, error) {
	spec, err := readSpec(f.Path)
	if err != nil {
		return nil, fmt.Errorf("reading the CDI spec: %w", err)
	}
	given := map[string]Given{}
	for _, d := range spec.Devices {
		var g Given
		for _, edits := range []specs.ContainerEdits{spec.ContainerEdits, d.ContainerEdits} {
			for _, n := range edits.DeviceNodes {
				g.Nodes = append(g.Nodes, n.Path)
			}
			for _, m := range edits.Mounts {
				g.Files = append(g.Files, path.Base(m.ContainerPath))
			}
		}
		slices.Sort(g.Files) // each library is mounted at several places
		g.Files = slices.Compact(g.Files)
		given[d.Name] = g
	}
	return given, nil
}
