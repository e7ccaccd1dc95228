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

// Excluded returns the UUIDs of the GPUs and MIG devices that the rules exclude. It includes GPUs in MIG mode whose MIG
// devices are advertised instead of them, if a rule selects and excludes these GPUs.
func (p Policy) Excluded(inv *gpu.Inventory) (uuids []string) {
	for _, a := range Assign(inv, p) {
		if a.Rule.Exclude {
			uuids = append(uuids, a.Device.ID)
		}
	}
	for _, g := range inv.GPUs {
		rule, _ := p.Rules.Match(g, nil, GPUResource)
		if rule.Exclude && !rule.Select.IsZero() && !slices.Contains(uuids, g.UUID) {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}
