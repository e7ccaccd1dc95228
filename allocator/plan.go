package allocator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// GPUResource is the extended resource of whole GPUs, the same as that of NVIDIA's device plugin.
const GPUResource = "nvidia.com/gpu"

// migPrefix is the prefix of the resources of MIG devices.
const migPrefix = "nvidia.com/mig-"

// MIGResource returns the extended resource of a MIG profile. Resource names cannot contain "+", so the profile
// "1g.5gb+me" has the resource nvidia.com/mig-1g.5gb.me.
func MIGResource(profile string) string {
	return migPrefix + strings.ReplaceAll(profile, "+", ".")
}

// IsStandardResource reports whether resource is GPUResource or that of a MIG profile.
func IsStandardResource(resource string) bool {
	return resource == GPUResource || strings.HasPrefix(resource, migPrefix)
}

// Resource is an outlet with all its devices: an extended resource of the node, or the node's ResourceSlices. It
// includes unhealthy devices, because a device that a pod may hold must stay in the kubelet's list.
type Resource struct {
	Name    string   // SliceOutlet for the ResourceSlices
	Devices []Device // those of the plan first, in the order of the inventory

	affinity affinity
	slots    []slot         // in the order of Devices
	position map[string]int // index in slots by device ID
}

// slot is a device in the device plugin API: one of Devices, or a replica of one.
type slot struct {
	id     string
	device int // index in Devices
}

// Device is a GPU, a MIG device or the monitor.
type Device struct {
	ID       string   // UUID or MonitorID; the device ID in the device plugin API unless it is shared
	CDINames []string // qualified names of its CDI devices, all of which its containers get: "gpucdi.dev/gpu=GPU-…"
	GPU      string   // UUID of its GPU
	Resource string   // extended resource that the config selects; empty if the device is no longer in the plan
	Features Features // of its rule
	Index    string   // "5" for a GPU, "5:1" for a MIG device of it
	NUMANode int      // gpu.NUMAUnknown if the platform does not report it
	Fault    gpu.Fault

	// State is the state of its entries in the ledger; empty in a plan.
	State  State
	Since  time.Time // when it entered its state or got its fault
	Reason string    // why it is not available although it has no fault
	Awaits string    // what the release of a draining device waits for

	// Replicas are the device IDs of a shared device; nil if it is not shared.
	Replicas []string
	Class    Class // of the shares; empty if the device is not shared
	// Unenforceable reports that the driver cannot enforce the limits of Class. It is false while that is unknown.
	Unenforceable bool
	// Sharing is the unit in which claims share the device, and Capacity the total that they can get. Both are zero if
	// claims do not share it.
	Sharing  ShareUnit
	Capacity Amount
	// Subdivided reports whether the device is a MIG compute instance with a part of its GPU instance, such as 1c.3g.20gb.
	// All compute instances of a GPU instance share its memory.
	Subdivided bool
	// OneReplica reports whether a container that requests more than one device is rejected.
	OneReplica bool

	instances instances
}

// Sliced reports whether the outlet is the ResourceSlices.
func (r *Resource) Sliced() bool { return r.Name == SliceOutlet }

// IDs returns the IDs of the device in the device plugin API.
func (d Device) IDs() []string {
	if d.Shared() {
		return d.Replicas
	}
	return []string{d.ID}
}

// Shared reports whether the device plugin advertises replicas of the device.
func (d Device) Shared() bool { return d.Replicas != nil }

// Healthy reports whether the device can be allocated.
func (d Device) Healthy() bool {
	return d.Fault.None() && (d.State == "" || d.State == StateAvailable)
}

// instances are the IDs of the GPU instance and compute instance of a MIG device.
type instances struct{ gpu, compute int }

// wholeGPU stands for the instances of a device that is not a MIG device.
var wholeGPU = instances{-1, -1}

// Plan returns the resources that a node with these GPUs should advertise. cdiKind is the kind of its CDI spec. The
// result always contains GPUResource, even without devices, so that it is registered before the driver is installed.
// Devices that are gone are omitted.
func Plan(inv *gpu.Inventory, cdiKind string, policy Policy) []*Resource {
	names := []string{GPUResource} // the others in the order of their first devices
	assigned := map[string][]Assignment{}
	for _, a := range Assign(inv, policy) {
		if a.Outlet == "" {
			continue
		}
		if !slices.Contains(names, a.Outlet) {
			names = append(names, a.Outlet)
		}
		if a.Device.Fault.Code != gpu.FaultGone {
			a.Device.CDINames = CDINames(cdiKind, a.Device.ID, a.Device.Features)
			assigned[a.Outlet] = append(assigned[a.Outlet], a)
		}
	}
	var resources []*Resource
	for _, name := range names {
		devices := withReplicas(assigned[name])
		resources = append(resources, newResource(name, devices, newAffinity(owners(assigned[name]))))
	}
	if policy.Monitoring.Resource != "" {
		resources = append(resources, monitorResource(inv, cdiKind, policy.Monitoring))
	}
	return resources
}

// owners returns the GPU of each device.
func owners(assigned []Assignment) []gpu.GPU {
	gpus := make([]gpu.GPU, len(assigned))
	for i, a := range assigned {
		gpus[i] = a.GPU
	}
	return gpus
}

// configFault returns a fault that is caused by the config.
func configFault(remedy, format string, args ...any) gpu.Fault {
	return gpu.Fault{Code: gpu.FaultConfig, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func newResource(name string, devices []Device, aff affinity) *Resource {
	r := &Resource{Name: name, Devices: devices, affinity: aff, position: make(map[string]int, len(devices))}
	for i, d := range devices {
		for _, id := range d.IDs() {
			r.position[id] = len(r.slots)
			r.slots = append(r.slots, slot{id, i})
		}
	}
	return r
}
