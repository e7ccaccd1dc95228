package cdi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// Select returns the parts with only the named GPUs and MIG devices. Names are indexes or UUIDs. It skips named devices
// that are not in p.GPUs. The error lists all names that are not in inv.
func (p Parts) Select(inv *gpu.Inventory, names []string) (Parts, error) {
	selected := p
	selected.GPUs = map[string][]DeviceNode{}
	unknown := slices.Clone(names)
	var known []string
	for _, d := range namedDevices(inv) {
		for _, strategy := range []NameStrategy{ByIndex, ByUUID} {
			name := d.name(strategy)
			if known = append(known, name); !slices.Contains(names, name) {
				continue
			}
			unknown = slices.DeleteFunc(unknown, func(u string) bool { return u == name })
			if nodes, ok := p.GPUs[d.uuid]; ok {
				selected.GPUs[d.uuid] = nodes
			}
		}
	}
	if len(unknown) > 0 {
		return Parts{}, fmt.Errorf("selecting GPUs: not found: %s; available: %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return selected, nil
}
