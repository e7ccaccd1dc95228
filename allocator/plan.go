package allocator

import "github.com/gpucdi/gpucdi/gpu"

// GPUResource is the resource that whole GPUs are offered under; it is the
// name that users of NVIDIA GPUs already write into their pods.
const GPUResource = "nvidia.com/gpu"

// Resource is one resource of the node with all its devices, the unhealthy
// ones included: the kubelet must never lose sight of a device that a pod may
// hold.
type Resource struct {
	Name    string
	Devices []Device // in the inventory's order

	affinity affinity
	position map[string]int // device ID → index in Devices
}

// Device is one unit that the kubelet can hand out.
type Device struct {
	ID       string // what the kubelet calls it: the GPU's UUID
	CDIName  string // what the runtime calls it: "gpucdi.dev/gpu=GPU-…"
	NUMANode int    // gpu.NUMAUnknown when the platform does not tell
	Fault    string // why it is unhealthy; empty when it is healthy
}

// Plan says what a node with these GPUs offers. cdiKind is the CDI kind that
// the node's specs are written under. There is always a GPUResource, with no
// device when the node has none: a node whose driver comes later is the same
// node.
func Plan(inv *gpu.Inventory, cdiKind string) []*Resource {
	devices := make([]Device, 0, len(inv.GPUs))
	for _, g := range inv.GPUs {
		devices = append(devices, Device{
			ID:       g.UUID,
			CDIName:  cdiKind + "=" + g.UUID,
			NUMANode: g.NUMANode,
			Fault:    g.Fault,
		})
	}
	return []*Resource{newResource(GPUResource, devices, newAffinity(inv.GPUs))}
}

func newResource(name string, devices []Device, aff affinity) *Resource {
	position := make(map[string]int, len(devices))
	for i, d := range devices {
		position[d.ID] = i
	}
	return &Resource{Name: name, Devices: devices, affinity: aff, position: position}
}
