package cdi

import (
	"fmt"
	"path"
	"slices"

	"tags.cncf.io/container-device-interface/specs-go"
)

// Edits summarizes the container edits of a device, including those that all devices of its spec share.
type Edits struct {
	Nodes []string // paths of device nodes
	Files []string // base names of mounted files, sorted, without duplicates
}

// DeviceEdits reads the spec from disk and returns the container edits of each device, by its name.
func (f *File) DeviceEdits() (map[string]Edits, error) {
	spec, err := readSpec(f.Path)
	if err != nil {
		return nil, fmt.Errorf("reading the CDI spec: %w", err)
	}
	byName := map[string]Edits{}
	for _, d := range spec.Devices {
		var edits Edits
		for _, e := range []specs.ContainerEdits{spec.ContainerEdits, d.ContainerEdits} {
			for _, n := range e.DeviceNodes {
				edits.Nodes = append(edits.Nodes, n.Path)
			}
			for _, m := range e.Mounts {
				edits.Files = append(edits.Files, path.Base(m.ContainerPath))
			}
		}
		slices.Sort(edits.Files)
		edits.Files = slices.Compact(edits.Files) // each library is mounted in several directories
		byName[d.Name] = edits
	}
	return byName, nil
}
