package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// inspectPlatform collects the parts for the GPUs of a platform from the class that describes them. Features do not
// apply: the platform does not show which file belongs to which feature. All GPUs have the same device nodes.
func inspectPlatform(root host.Root, inv *gpu.Inventory) (Parts, error) {
	i := slices.IndexFunc(classes, func(c class) bool { return c.platform == inv.Platform })
	if i < 0 {
		return Parts{}, fmt.Errorf("discovering the GPUs of the platform %q: not supported", inv.Platform)
	}
	c := classes[i]
	nodes, parts, err := c.discover(root)
	absent := errors.As(err, new(*AbsentError))
	if err != nil && !absent {
		return Parts{}, err
	}
	if !absent && !slices.ContainsFunc(mounts(parts), isLibcuda) {
		return Parts{}, fmt.Errorf("finding the files to mount for %s: no libcuda.so.1; %s", c.description, c.remedy)
	}
	parts.GPUs, parts.Faults, parts.Shared = map[string][]DeviceNode{}, map[string]gpu.Fault{}, true
	for _, g := range inv.GPUs {
		parts.add(g.UUID, nodes, cmp.Or(err, c.missing(root)))
	}
	return parts, nil
}

// missing returns an error for each element of required of which no device node exists.
func (c class) missing(root host.Root) error {
	var errs []error
	for _, names := range c.required {
		found, err := findNodes(root, names)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("character device %s not found; %s", strings.Join(names, " or "), c.remedy)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isLibcuda reports whether a mount provides libcuda in libcudaDir.
func isLibcuda(m *specs.Mount) bool { return m.ContainerPath == libcudaDir+"/libcuda.so.1" }
