package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// Assignment assigns a GPU or MIG device to a resource, according to the config.
type Assignment struct {
	GPU    gpu.GPU
	Device Device // without CDINames and Replicas

	Resource string // extended resource, which is an attribute in the ResourceSlices; empty if the rule excludes the device
	Outlet   string // Resource or SliceOutlet; empty if the rule excludes the device
	Rule     Rule   // the zero Rule if none matches
	Position int    // of the rule in the config; negative if none matches
}

// Mode returns the mode of the device; empty if the rule excludes it.
func (a Assignment) Mode() Mode {
	switch a.Outlet {
	case "":
		return ""
	case SliceOutlet:
		return ModeDRA
	}
	return ModeDevicePlugin
}

// Assign returns the assignment of each device that a node could advertise, including devices that are gone or that
// rules exclude. With MIGNone it omits MIG devices; with the other strategies it omits GPUs in MIG mode. With MIGMixed
// it also omits MIG devices without a profile.
func Assign(inv *gpu.Inventory, p Policy) []Assignment {
	var notUniform gpu.Fault
	if p.MIG == MIGSingle {
		notUniform = NotUniform(inv, p.Rules)
	}
	var all []Assignment
	add := func(g gpu.GPU, m *gpu.MIGDevice, standard string, d Device) {
		a := Assignment{GPU: g, Device: d}
		a.Rule, a.Position = p.Rules.Match(g, m, standard)
		if !a.Rule.Exclude {
			a.Resource = a.Rule.Resource(standard)
			a.Outlet = a.Resource
			switch {
			case p.mode(a.Rule) == ModeDRA:
				a.Outlet = SliceOutlet
			case slices.Contains(p.Requested, d.ID): // the claim selected it without the rule, which is for the device plugin
				a.Resource, a.Outlet, a.Rule = standard, SliceOutlet, Rule{}
			}
		}
		if a.Outlet == GPUResource {
			a.Device.Fault = cmp.Or(a.Device.Fault, notUniform)
		}
		a.Device.Features = NewFeatures(a.Rule.Features)
		class, unenforced := a.Rule.class(g, p.Shares.Compute)
		memory := g.MemoryBytes
		if m != nil {
			memory = m.MemoryBytes
		}
		capacity, tooSmall := p.capacity(a.Rule, class, memory)
		a.Device.Class, a.Device.Sharing, a.Device.Capacity = class, a.Rule.Share, capacity
		a.Device.Unenforceable = !unenforced.None() && g.MemoryLimits != ""
		a.Device.Fault = cmp.Or(a.Device.Fault, p.variantFault(a.Device), tooSmall, unenforced)
		a.Device.GPU, a.Device.NUMANode, a.Device.Resource, a.Device.OneReplica = g.UUID, g.NUMANode, a.Resource, a.Rule.FailRequestsGreaterThanOne
		all = append(all, a)
	}
	for _, g := range inv.GPUs {
		if fault, whole := advertisedWhole(g, p.MIG); whole {
			add(g, nil, GPUResource, Device{ID: g.UUID, Index: strconv.Itoa(g.Index), instances: wholeGPU, Fault: cmp.Or(g.Fault, fault)})
		}
		for _, m := range g.MIGDevices {
			if name := resourceOf(m, p.MIG); name != "" {
				add(g, &m, name, Device{ID: m.UUID, Index: fmt.Sprintf("%d:%d", g.Index, m.Index),
					instances: instances{m.GPUInstance, m.ComputeInstance}, Subdivided: m.Subdivided(), Fault: m.Fault})
			}
		}
	}
	return all
}

// advertisedWhole reports whether a GPU is advertised as a whole, and with which fault. Programs can use a GPU in MIG
// mode only through its MIG devices, so with the strategy none it is advertised as unhealthy.
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

// NotUniform returns a fault if the strategy single cannot advertise the GPUs, and otherwise the zero Fault. It ignores
// GPUs with a fault, MIG devices that are gone or have no profile, and devices that rules exclude or advertise as
// another resource, so that these do not make healthy devices unhealthy.
func NotUniform(inv *gpu.Inventory, rules Rules) gpu.Fault {
	removed := func(g gpu.GPU, m *gpu.MIGDevice) bool {
		rule, _ := rules.Match(g, m, GPUResource)
		return rule.Removes(GPUResource)
	}
	var whole, partitioned bool
	var profiles []string
	for _, g := range inv.GPUs {
		switch {
		case !g.Fault.None():
			continue
		case g.MIG != gpu.MIGEnabled:
			whole = whole || !removed(g, nil)
			continue
		}
		count := 0
		for _, m := range g.MIGDevices {
			if removed(g, &m) {
				continue
			}
			count++
			if m.Fault.Code != gpu.FaultGone && m.Profile != "" && !slices.Contains(profiles, m.Profile) {
				profiles = append(profiles, m.Profile)
			}
		}
		rule, _ := rules.Match(g, nil, GPUResource)
		partitioned = partitioned || count > 0 || len(g.MIGDevices) == 0 && !rule.Exclude
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
