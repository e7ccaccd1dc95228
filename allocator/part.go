package allocator

import "github.com/gpucdi/gpucdi/gpu"

// Extent is the kind of a Part.
type Extent string

// The extents. An ID has ExtentUnknown if it is known only from evidence that does not identify its hardware.
const (
	ExtentUnknown Extent = ""
	ExtentWhole   Extent = "whole"
	ExtentMIG     Extent = "mig"
	ExtentMonitor Extent = "monitor" // all GPUs, without excluding other holders
)

// Part is the hardware behind a device ID: a GPU, a MIG device, a share of one, or all GPUs for monitoring. The zero
// Part may be any part of any GPU.
type Part struct {
	GPU    string `json:"gpu,omitempty"` // UUID; empty: unknown
	Extent Extent `json:"extent,omitempty"`

	// Instance IDs and placement of a MIG device. After repartitioning, the driver reuses the IDs, and the UUID derived
	// from them, for other devices.
	GPUInstance     int           `json:"gpuInstance,omitempty"`
	ComputeInstance int           `json:"computeInstance,omitempty"`
	Placement       gpu.Placement `json:"placement,omitzero"`

	Share Share `json:"share,omitzero"` // zero: the GPU or MIG device is not shared
}

// Class is the sharing mechanism. Shares of different classes cannot coexist on a device.
type Class string

// The classes of shares. Except with Ceiled, their processes take turns on the device.
const (
	TimeSliced    Class = "time-sliced"
	MemoryLimited Class = "memory-limited" // with a part of the memory for each
	Ceiled        Class = "ceiled"         // with a part of the memory and a maximum of the compute time for each

	// PerhapsLimited is the class of a replica that a pod held when an agent started without saved state: it is unknown
	// whether its memory is limited.
	PerhapsLimited Class = "perhaps-limited"
)

// limited reports whether the memory limit of a replica has to be set before a container starts.
func (c Class) limited() bool { return c == MemoryLimited || c == PerhapsLimited || c == Ceiled }

// Share is one of Count equal shares of a GPU or MIG device. If Unit is set, it is the whole device, of which claims
// get amounts.
type Share struct {
	Class Class     `json:"class,omitempty"`
	Count int       `json:"count,omitempty"` // 0 if Unit is set
	Unit  ShareUnit `json:"unit,omitempty"`
}

// valid reports whether a part from saved state is well-formed.
func (p Part) valid() bool {
	switch p.Extent {
	case ExtentUnknown, ExtentMonitor:
	case ExtentWhole, ExtentMIG:
		if p.GPU == "" {
			return false
		}
	default: // of a later version
		return false
	}
	return p.Placement.Start >= 0 && p.Placement.Size >= 0 && p.Share.valid()
}

func (s Share) valid() bool {
	if s.Class == "" || s.Unit != "" {
		return s.Count == 0
	}
	return s.Count > 0
}

// Device returns the GPU or MIG device that p is, or is a share of.
func (p Part) Device() Part {
	p.Share = Share{}
	return p
}

// touches reports whether the devices of two parts have hardware in common, regardless of shares.
//
// A container accesses a MIG device through the device nodes of its instance IDs, so devices with equal IDs touch even
// if the GPU was repartitioned in between. Different GPU instances touch if their placements intersect. A placement has
// size 0 if the driver does not report it; the driver is then trusted not to place two instances on the same slices.
// Compute instances of one GPU instance do not touch, although they share its memory. The monitor touches nothing.
func (p Part) touches(q Part) bool {
	if p.Extent == ExtentMonitor || q.Extent == ExtentMonitor {
		return false
	}
	if p.Extent == ExtentUnknown || q.Extent == ExtentUnknown {
		return p.GPU == q.GPU || p.GPU == "" || q.GPU == ""
	}
	switch {
	case p.GPU != q.GPU:
		return false
	case p.Extent == ExtentWhole || q.Extent == ExtentWhole:
		return true
	case p.GPUInstance == q.GPUInstance:
		return p.ComputeInstance == q.ComputeInstance
	}
	a, b := p.Placement, q.Placement
	return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size
}

// overlaps reports whether two parts exclude each other regardless of their sizes. Shares of one device and class do
// not: they can be used together until they add up to the device.
func (p Part) overlaps(q Part) bool {
	if p.Share.Count > 0 && p.Share.Class == q.Share.Class && p.Extent != ExtentUnknown && p.Device() == q.Device() {
		return false
	}
	return p.touches(q)
}
