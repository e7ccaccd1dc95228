package allocator

import (
	"cmp"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// Mode is the Kubernetes API through which a device is allocated.
type Mode string

// The modes.
const (
	ModeDevicePlugin Mode = "devicePlugin" // extended resources of the device plugin
	ModeDRA          Mode = "dra"          // ResourceClaims
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{ModeDevicePlugin, ModeDRA} }

// Policy configures how a node advertises its GPUs and MIG devices.
type Policy struct {
	MIG   MIGStrategy
	Mode  Mode // of devices whose rule has none; empty: ModeDevicePlugin
	Rules Rules

	// Requested are the IDs of devices that are in the ResourceSlices whatever their mode, because claims need them: the
	// scheduler allocated them after they had left the slices. See Gate.Requested.
	Requested []string

	Monitoring Monitoring
	Shares     Shares

	// VariantFaults are the faults of CDI devices that add a feature, by VariantName.
	VariantFaults map[string]gpu.Fault
}

// mode returns the mode of devices that a rule matches.
func (p Policy) mode(r Rule) Mode { return cmp.Or(r.Mode, p.Mode, ModeDevicePlugin) }

// UsesDRA reports whether devices may be allocated to ResourceClaims.
func (p Policy) UsesDRA() bool {
	return p.Mode == ModeDRA || slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Mode == ModeDRA })
}

// SelectsFeature reports whether any rule selects a feature.
func (p Policy) SelectsFeature(name string) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return slices.Contains(r.Features, name) })
}

// Excluded returns the UUIDs of the GPUs and MIG devices that the rules exclude. A GPU in MIG mode is excluded if all its
// MIG devices are. If it has none, the rule that matches the GPU itself decides.
func (p Policy) Excluded(inv *gpu.Inventory) (uuids []string) {
	assigned, advertised := map[string]bool{}, map[string]bool{} // GPUs with a device, and those with one that is not excluded
	for _, a := range Assign(inv, p) {
		assigned[a.GPU.UUID] = true
		if a.Rule.Exclude {
			uuids = append(uuids, a.Device.ID)
		} else {
			advertised[a.GPU.UUID] = true
		}
	}
	standard := "" // the default resource of MIG devices depends on their profile
	if p.MIG == MIGSingle {
		standard = GPUResource
	}
	for _, g := range inv.GPUs {
		excluded := assigned[g.UUID] && !advertised[g.UUID]
		if !assigned[g.UUID] {
			rule, _ := p.Rules.Match(g, nil, standard)
			excluded = rule.Exclude
		}
		if excluded && !slices.Contains(uuids, g.UUID) {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}
