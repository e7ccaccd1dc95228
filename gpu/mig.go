package gpu

import (
	"slices"
	"strings"
)

// MIGMode is the current MIG mode of a GPU.
type MIGMode string

// The MIG modes.
const (
	MIGUnsupported MIGMode = "unsupported"
	MIGDisabled    MIGMode = "disabled"
	MIGEnabled     MIGMode = "enabled"
)

// MIGDevice is a compute instance within a GPU instance.
type MIGDevice struct {
	// UUID is "MIG-…". The driver derives it from the GPU and the two instance IDs, so a device with the same IDs has
	// the same UUID even if its profile differs.
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // NVML's enumeration order within the GPU; changes when the GPU is repartitioned

	// Profile is "1g.5gb", "1g.5gb+me" (with media extensions), or "1c.3g.20gb" (one compute slice of a "3g.20gb").
	Profile string `json:"profile"`

	GPUInstance     int       `json:"gpuInstance"`
	ComputeInstance int       `json:"computeInstance"` // its ID within the GPU instance
	MemoryBytes     uint64    `json:"memoryBytes"`     // of the GPU instance, shared by its compute instances
	Placement       Placement `json:"placement"`

	Multiprocessors int     `json:"multiprocessors"`
	GPUSlices       int     `json:"gpuSlices"`     // of the GPU instance
	ComputeSlices   int     `json:"computeSlices"` // of the compute instance
	Engines         Engines `json:"engines"`

	// Fault is the reason that the MIG device cannot be allocated.
	Fault Fault `json:"fault,omitzero"`

	// Partial is set if some attributes could not be read; see GPU.Partial.
	Partial bool `json:"partial,omitempty"`
}

// Subdivided reports whether the device has a part of its GPU instance, whose other compute instances share its memory.
func (m MIGDevice) Subdivided() bool { return strings.Contains(m.Profile, "c.") }

// Engines are the engine counts of a GPU instance. Its compute instances share them.
type Engines struct {
	Copy    int `json:"copy"`
	Decoder int `json:"decoder"`
	Encoder int `json:"encoder"`
	JPEG    int `json:"jpeg"`
	OFA     int `json:"ofa"` // optical flow
}

// Placement is the position of a GPU instance within its GPU, in memory slices. Size is 0 if unknown.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// retain copies now and appends the devices that are only in earlier, with the fault Gone. Partial devices keep their
// earlier attributes.
func retain(earlier, now []MIGDevice) []MIGDevice {
	kept := slices.Clone(now)
	for _, m := range earlier {
		switch i := slices.IndexFunc(kept, func(n MIGDevice) bool { return n.UUID == m.UUID }); {
		case i < 0:
			m.Fault = Gone()
			kept = append(kept, m)
		case kept[i].Partial:
			m.Index, m.Fault, m.Partial = kept[i].Index, kept[i].Fault, true
			kept[i] = m
		}
	}
	return kept
}

// MIGDevice returns the GPU's MIG device with that UUID.
func (g GPU) MIGDevice(uuid string) (MIGDevice, bool) { return find(g.MIGDevices, uuid) }

func find(devices []MIGDevice, uuid string) (MIGDevice, bool) {
	i := slices.IndexFunc(devices, func(m MIGDevice) bool { return m.UUID == uuid })
	if i < 0 {
		return MIGDevice{}, false
	}
	return devices[i], true
}
