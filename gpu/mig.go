package gpu

import "slices"

// MIGMode is whether a GPU is cut into MIG devices.
type MIGMode string

// The MIG modes.
const (
	MIGUnsupported MIGMode = "unsupported"
	MIGDisabled    MIGMode = "disabled"
	MIGEnabled     MIGMode = "enabled"
)

// MIGDevice is a part of a GPU in MIG mode that programs use as a GPU of its
// own: a compute instance within a GPU instance.
type MIGDevice struct {
	// UUID is "MIG-…". The driver makes it of the GPU and the two instances,
	// so the same numbers give the same UUID again, be it of another profile.
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // NVML's order within the GPU; changes when it is cut anew

	// Profile is its size: "1g.5gb", "1g.5gb+me" with the media engines, or
	// "1c.3g.20gb" for one compute slice of a "3g.20gb".
	Profile string `json:"profile"`

	GPUInstance     int       `json:"gpuInstance"`
	ComputeInstance int       `json:"computeInstance"` // its number within the GPU instance
	MemoryBytes     uint64    `json:"memoryBytes"`     // of the GPU instance, whose compute instances share it
	Placement       Placement `json:"placement"`

	Multiprocessors int     `json:"multiprocessors"`
	GPUSlices       int     `json:"gpuSlices"`     // of the GPU instance
	ComputeSlices   int     `json:"computeSlices"` // of the compute instance
	Engines         Engines `json:"engines"`

	// Fault says why this MIG device cannot be given out, as GPU.Fault does.
	Fault Fault `json:"fault,omitzero"`
}

// Engines counts what a GPU instance has beside its multiprocessors. Its compute
// instances share them.
type Engines struct {
	Copy    int `json:"copy"`
	Decoder int `json:"decoder"`
	Encoder int `json:"encoder"`
	JPEG    int `json:"jpeg"`
	OFA     int `json:"ofa"` // optical flow
}

// Placement is where a GPU instance lies in its GPU, in memory slices. The
// size is 0 when the driver does not tell.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// retain returns now with those of earlier that it lacks added at the end, with
// the fault Gone.
func retain(earlier, now []MIGDevice) []MIGDevice {
	kept := slices.Clone(now)
	for _, m := range earlier {
		if _, here := find(now, m.UUID); !here {
			m.Fault = Gone()
			kept = append(kept, m)
		}
	}
	return kept
}

// MIGDevice returns the GPU's part of that UUID.
func (g GPU) MIGDevice(uuid string) (MIGDevice, bool) { return find(g.MIGDevices, uuid) }

func find(devices []MIGDevice, uuid string) (MIGDevice, bool) {
	i := slices.IndexFunc(devices, func(m MIGDevice) bool { return m.UUID == uuid })
	if i < 0 {
		return MIGDevice{}, false
	}
	return devices[i], true
}
