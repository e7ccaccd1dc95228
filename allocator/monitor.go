package allocator

import "github.com/gpucdi/gpucdi/gpu"

// MonitorID is the ID and the CDI device name of the monitor, a device that stands for all GPUs of the node and is
// allocated to monitoring containers. Other containers may hold the GPUs at the same time.
const MonitorID = "monitor"

// monitorPart is the part of the monitor. It touches no part, not even itself.
var monitorPart = Part{Extent: ExtentMonitor}

// monitorIndex stands for the indexes of all GPUs.
const monitorIndex = "all"

// MaxMonitors is the maximum of Monitoring.Count.
const MaxMonitors = 1000

// Monitoring configures a resource for monitoring containers.
type Monitoring struct {
	// Extended resource for monitoring pods, such as nvidia.com/gpu-monitor; empty disables it. A
	// container that requests one gets all GPUs of the node, and takes none from other pods.
	Resource string `yaml:"resource"`

	// Number of containers of a node that can have the resource at the same time.
	Count int `yaml:"count"`
}

// monitorResource returns the resource of the monitor with its replicas; without devices if PresentIn returns none.
func monitorResource(inv *gpu.Inventory, cdiKind string, m Monitoring) *Resource {
	if len(PresentIn(inv)) == 0 {
		return newResource(m.Resource, nil, nil)
	}
	var fault gpu.Fault // of the node; other faults of a GPU do not affect the monitor
	for _, g := range inv.GPUs {
		if g.Fault.Code == gpu.FaultDriver || g.Fault.Code == gpu.FaultSpec {
			fault = g.Fault
		}
	}
	d := Device{ID: MonitorID, CDINames: CDINames(cdiKind, MonitorID, ""), Resource: m.Resource, Index: monitorIndex, NUMANode: gpu.NUMAUnknown,
		Fault: fault, Replicas: replicaIDs(MonitorID, m.Count)}
	return newResource(m.Resource, []Device{d}, matrix(1))
}
