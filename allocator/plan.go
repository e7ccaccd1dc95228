package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
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

// Resource is an extended resource of the node with all its devices. It includes unhealthy ones, because a device that
// a pod may hold must stay in the kubelet's list.
type Resource struct {
	Name    string
	Devices []Device // in the order of the inventory; draining and released ones last

	affinity affinity
	slots    []slot         // in the order of Devices
	position map[string]int // index in slots by device ID
}

// slot is a device in the device plugin API: one of Devices, or a replica of one.
type slot struct {
	id     string
	device int // index in Devices
}

// Device is a GPU or MIG device.
type Device struct {
	ID       string // UUID; the device ID in the device plugin API unless it is shared
	CDIName  string // qualified CDI device name: "gpucdi.dev/gpu=GPU-…"
	GPU      string // UUID of the GPU that it is, or is a part of
	Index    string // "5" for a GPU, "5:1" for a MIG device of it
	NUMANode int    // gpu.NUMAUnknown if the platform does not report it
	Fault    gpu.Fault

	// State is the state of its entries in the ledger; empty in a plan.
	State  State
	Since  time.Time // since when it is in its state, with its fault
	Reason string    // why it is not available although it has no fault
	Awaits string    // what the release of a draining device waits for

	// Replicas are the device IDs of a shared device; nil if it is not shared.
	Replicas []string

	part instances
}

// IDs returns the IDs of the device in the device plugin API.
func (d Device) IDs() []string {
	if d.Shared() {
		return d.Replicas
	}
	return []string{d.ID}
}

// Shared reports whether several containers can use the device at a time.
func (d Device) Shared() bool { return d.Replicas != nil }

// Healthy reports whether the device can be allocated.
func (d Device) Healthy() bool {
	return d.Fault.None() && (d.State == "" || d.State == StateAvailable)
}

// instances are the IDs of the GPU and compute instance of a MIG device.
type instances struct{ gpu, compute int }

// wholeGPU stands for the instances of a GPU that is not in MIG mode.
var wholeGPU = instances{-1, -1}

// Plan returns the resources that a node with these GPUs should advertise. cdiKind is the kind of its CDI spec. The
// result always contains GPUResource, even without devices, so that it is registered before the driver is installed.
// Devices that are gone are omitted.
func Plan(inv *gpu.Inventory, cdiKind string, strategy MIGStrategy, rules Rules) []*Resource {
	b := planBuilder{
		names: []string{GPUResource}, kind: cdiKind,
		devices: map[string][]Device{}, owners: map[string][]gpu.GPU{},
	}
	var notUniform gpu.Fault
	if strategy == MIGSingle {
		notUniform = NotUniform(inv)
	}
	for _, g := range inv.GPUs {
		if fault, whole := advertisedWhole(g, strategy); whole {
			b.add(GPUResource, g, Device{
				ID: g.UUID, Index: strconv.Itoa(g.Index), part: wholeGPU,
				Fault: cmp.Or(g.Fault, fault, notUniform),
			})
		}
		for _, m := range g.MIGDevices {
			if name := resourceOf(m, strategy); name != "" {
				b.add(name, g, Device{
					ID: m.UUID, Index: fmt.Sprintf("%d:%d", g.Index, m.Index), part: instances{m.GPUInstance, m.ComputeInstance},
					Fault: cmp.Or(m.Fault, notUniform),
				})
			}
		}
	}
	var resources []*Resource
	for _, name := range b.names {
		rule := rules.Of(name)
		if name == GPUResource && rule.Rename != "" {
			resources = append(resources, newResource(name, nil, nil))
		}
		share(b.devices[name], rule.Replicas)
		resources = append(resources, newResource(cmp.Or(rule.Rename, name), b.devices[name], newAffinity(b.owners[name])))
	}
	return resources
}

// planBuilder groups devices by resource.
type planBuilder struct {
	kind    string
	names   []string // of the resources, in order of their first devices
	devices map[string][]Device
	owners  map[string][]gpu.GPU // GPU of each device
}

func (b *planBuilder) add(resource string, g gpu.GPU, device Device) {
	if !slices.Contains(b.names, resource) {
		b.names = append(b.names, resource)
	}
	if device.Fault.Code == gpu.FaultGone {
		return
	}
	device.CDIName, device.GPU, device.NUMANode = b.kind+"="+device.ID, g.UUID, g.NUMANode
	b.devices[resource] = append(b.devices[resource], device)
	b.owners[resource] = append(b.owners[resource], g)
}

// advertisedWhole reports whether a GPU is advertised as a whole, and with which fault. Programs cannot use a GPU in
// MIG mode without one of its MIG devices, so with the strategy none it is advertised as unhealthy.
func advertisedWhole(g gpu.GPU, strategy MIGStrategy) (fault gpu.Fault, whole bool) {
	switch {
	case g.MIG != gpu.MIGEnabled:
		return gpu.Fault{}, true
	case strategy == MIGNone:
		return configFault("set mig.strategy to single or mixed, or disable MIG mode",
			"in MIG mode, but mig.strategy is none"), true
	}
	return gpu.Fault{}, false
}

// resourceOf returns the resource of a MIG device, empty if it is not advertised.
func resourceOf(m gpu.MIGDevice, strategy MIGStrategy) string {
	switch {
	case strategy == MIGSingle:
		return GPUResource
	case strategy == MIGMixed && m.Profile != "": // without a profile it has no resource
		return MIGResource(m.Profile)
	}
	return ""
}

// NotUniform returns the fault of a node whose GPUs are not partitioned alike, which the strategy single requires; the
// zero Fault if they are. GPUs with a fault, MIG devices that are gone and those without a profile do not count, so
// that they do not make the healthy ones unhealthy.
func NotUniform(inv *gpu.Inventory) gpu.Fault {
	var whole, partitioned bool
	var profiles []string
	for _, g := range inv.GPUs {
		if !g.Fault.None() {
			continue
		}
		whole = whole || g.MIG != gpu.MIGEnabled
		partitioned = partitioned || g.MIG == gpu.MIGEnabled
		for _, m := range g.MIGDevices {
			if m.Fault.Code != gpu.FaultGone && m.Profile != "" && !slices.Contains(profiles, m.Profile) {
				profiles = append(profiles, m.Profile)
			}
		}
	}
	switch {
	case whole && partitioned:
		return configFault("enable MIG mode on all GPUs, or set mig.strategy to mixed",
			"mig.strategy is single, but only some GPUs are in MIG mode")
	case len(profiles) > 1:
		return configFault("partition all GPUs alike, or set mig.strategy to mixed",
			"mig.strategy is single, but there are MIG devices of %s", strings.Join(profiles, ", "))
	}
	return gpu.Fault{}
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
