package allocator

import (
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// variantMark separates the device from the feature in the name of a CDI device; see VariantName.
const variantMark = "."

// VariantName returns the name of the CDI device that is a GPU or MIG device with one more feature: "GPU-….graphics".
func VariantName(id, feature string) string { return id + variantMark + feature }

// DeviceOfCDI returns the ID of the GPU or MIG device, or the MonitorID, of a CDI device name, qualified or not:
// "GPU-…" of "gpucdi.dev/gpu=GPU-…" and of "gpucdi.dev/gpu=GPU-….graphics".
func DeviceOfCDI(name string) string {
	if _, unqualified, qualified := strings.Cut(name, "="); qualified {
		name = unqualified
	}
	id, _, _ := strings.Cut(name, variantMark)
	return id
}

// Features is a set of driver capabilities: their names, sorted and joined by commas.
type Features string

// NewFeatures returns the set of the named features.
func NewFeatures(names []string) Features {
	return Features(strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ","))
}

// Names returns the names of the features, sorted.
func (f Features) Names() []string {
	if f == "" {
		return nil
	}
	return strings.Split(string(f), ",")
}

// CDINames returns the qualified names of the CDI devices that give a container a device with features: its variants,
// which each contain the whole device, or the device itself without features.
func CDINames(kind, id string, features Features) (names []string) {
	for _, f := range features.Names() {
		names = append(names, kind+"="+VariantName(id, f))
	}
	if names == nil {
		names = []string{kind + "=" + id}
	}
	return names
}

// variantFault returns the fault of one of the device's variants; the zero Fault if there is none.
func (p Policy) variantFault(d Device) gpu.Fault {
	for _, f := range d.Features.Names() {
		if fault := p.VariantFaults[VariantName(d.ID, f)]; !fault.None() {
			return fault
		}
	}
	return gpu.Fault{}
}
