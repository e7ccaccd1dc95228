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

// GPUResource is the resource that whole GPUs are offered under; it is the
// name that users of NVIDIA GPUs already write into their pods.
const GPUResource = "nvidia.com/gpu"

// migPrefix begins the names of the resources of MIG devices.
const migPrefix = "nvidia.com/mig-"

// MIGResource is the resource of the MIG devices of a profile, as users know it:
// "1g.5gb+me" is nvidia.com/mig-1g.5gb.me, since a name may have no "+".
func MIGResource(profile string) string {
	return migPrefix + strings.ReplaceAll(profile, "+", ".")
}

// Offered reports whether Plan gives devices under a name of a resource, whatever the rules.
func Offered(resource string) bool {
	return resource == GPUResource || strings.HasPrefix(resource, migPrefix)
}

// Resource is one resource of the node with all its devices, the unhealthy
// ones included: the kubelet must never lose sight of a device that a pod may
// hold.
type Resource struct {
	Name    string
	Devices []Device // in the inventory's order; those that left come last

	affinity affinity
	slots    []slot         // in the order of Devices
	position map[string]int // ID of the kubelet's → index in slots
}

// slot is what the kubelet takes for a device: one of Devices, or a replica of it.
type slot struct {
	id     string
	device int // index in Devices
}

// Device is a GPU or MIG device that the kubelet can hand out.
type Device struct {
	ID       string // its UUID, which is what the kubelet calls it unless it is shared
	CDIName  string // what the runtime calls it: "gpucdi.dev/gpu=GPU-…"
	GPU      string // the UUID of the GPU that it is, or is a part of
	Index    string // what people call it: "5" a GPU, "5:1" a MIG device of it
	NUMANode int    // gpu.NUMAUnknown when the platform does not tell
	Fault    gpu.Fault

	// State is that of its entries in the ledger; empty in a plan.
	State  State
	Since  time.Time // since when it is in its state, with its fault
	Why    string    // why it is not available although it has no fault
	Awaits string    // what the release of a draining device waits for

	// Replicas are what the kubelet calls a device that is shared, a name for each
	// pod that can have it at a time; nil for one that is not.
	Replicas []string

	part instances
}

// IDs are what the kubelet calls the device.
func (d Device) IDs() []string {
	if d.Shared() {
		return d.Replicas
	}
	return []string{d.ID}
}

// Shared says whether several pods can have the device at a time.
func (d Device) Shared() bool { return d.Replicas != nil }

// Healthy reports whether the device can be allocated.
func (d Device) Healthy() bool {
	return d.Fault.None() && (d.State == "" || d.State == StateAvailable)
}

// instances are what a MIG device is made of.
type instances struct{ gpu, compute int }

// wholeGPU is the part of a GPU that is not cut.
var wholeGPU = instances{-1, -1}

// Plan says what a node with these GPUs offers. cdiKind is the CDI kind that
// the node's specs are written under. There is always a GPUResource, with no
// device when the node has none: a node whose driver comes later is the same
// node. What is gone is not offered. rules say what is shared.
func Plan(inv *gpu.Inventory, cdiKind string, strategy MIGStrategy, rules Rules) []*Resource {
	d := draft{names: []string{GPUResource}, kind: cdiKind, devices: map[string][]Device{}, owners: map[string][]gpu.GPU{}}
	var notUniform gpu.Fault
	if strategy == MIGSingle {
		notUniform = NotUniform(inv)
	}
	for _, g := range inv.GPUs {
		if fault, whole := offeredWhole(g, strategy); whole {
			d.add(GPUResource, g, Device{
				ID: g.UUID, Index: strconv.Itoa(g.Index), part: wholeGPU,
				Fault: cmp.Or(g.Fault, fault, notUniform),
			})
		}
		for _, m := range g.MIGDevices {
			if name := resourceOf(m, strategy); name != "" {
				d.add(name, g, Device{
					ID: m.UUID, Index: fmt.Sprintf("%d:%d", g.Index, m.Index), part: instances{m.GPUInstance, m.ComputeInstance},
					Fault: cmp.Or(m.Fault, notUniform),
				})
			}
		}
	}
	var resources []*Resource
	for _, name := range d.names {
		rule := rules.Of(name)
		if name == GPUResource && rule.Rename != "" {
			resources = append(resources, newResource(name, nil, nil))
		}
		share(d.devices[name], rule.Replicas)
		resources = append(resources, newResource(cmp.Or(rule.Rename, name), d.devices[name], newAffinity(d.owners[name])))
	}
	return resources
}

// draft collects devices by resource.
type draft struct {
	kind    string
	names   []string // of the resources, in the order of their first devices
	devices map[string][]Device
	owners  map[string][]gpu.GPU // of the devices
}

func (d *draft) add(resource string, g gpu.GPU, one Device) {
	if !slices.Contains(d.names, resource) {
		d.names = append(d.names, resource)
	}
	if one.Fault.Code == gpu.FaultGone {
		return
	}
	one.CDIName, one.GPU, one.NUMANode = d.kind+"="+one.ID, g.UUID, g.NUMANode
	d.devices[resource] = append(d.devices[resource], one)
	d.owners[resource] = append(d.owners[resource], g)
}

// offeredWhole says whether a GPU is listed as a whole, and with what fault. In
// MIG mode a program that has the GPU and none of its MIG devices finds nothing
// to use; so the GPU is either its MIG devices or, where the strategy has none,
// there but of no use.
func offeredWhole(g gpu.GPU, strategy MIGStrategy) (fault gpu.Fault, whole bool) {
	switch {
	case g.MIG != gpu.MIGEnabled:
		return gpu.Fault{}, true
	case strategy == MIGNone:
		return configFault("set mig.strategy to single or mixed, or turn MIG mode off", "in MIG mode, in which it can only be given out in parts"), true
	}
	return gpu.Fault{}, false
}

// resourceOf is the resource that a MIG device is offered under; empty for none.
func resourceOf(m gpu.MIGDevice, strategy MIGStrategy) string {
	switch {
	case strategy == MIGSingle:
		return GPUResource
	case strategy == MIGMixed && m.Profile != "": // one that tells no profile is nobody's
		return MIGResource(m.Profile)
	}
	return ""
}

// NotUniform returns why the node's GPUs cannot be offered as one kind of device, which
// the strategy single requires; none if they can. GPUs with a fault, MIG devices that are
// gone and those that report no profile do not count: they would take the healthy ones with them.
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
		return configFault("partition all of them, or set it to mixed", "mig.strategy is single, but only some GPUs are in MIG mode")
	case len(profiles) > 1:
		return configFault("partition all GPUs alike, or set it to mixed", "mig.strategy is single, but there are MIG devices of %s", strings.Join(profiles, ", "))
	}
	return gpu.Fault{}
}

// configFault is the fault of a device that the config does not fit.
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
