package cdi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// Choose returns the parts with no GPUs and MIG devices but those that are named,
// in any of the ways to name them. The error lists all names that are none.
func (p Parts) Choose(inv *gpu.Inventory, names []string) (Parts, error) {
	chosen := p
	chosen.GPUs = map[string][]Node{}
	unknown := slices.Clone(names)
	var known []string
	for _, e := range entries(inv) {
		for _, by := range []Name{ByIndex, ByUUID} {
			name := e.name(by)
			if known = append(known, name); !slices.Contains(names, name) {
				continue
			}
			unknown = slices.DeleteFunc(unknown, func(u string) bool { return u == name })
			if nodes, ok := p.GPUs[e.uuid]; ok {
				chosen.GPUs[e.uuid] = nodes
			}
		}
	}
	if len(unknown) > 0 {
		return Parts{}, fmt.Errorf("choosing GPUs: there is no %s; there are %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return chosen, nil
}
