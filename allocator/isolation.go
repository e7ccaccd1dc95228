package allocator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// MemoryIsolation is the level of isolation between the pods that share the memory of a device.
type MemoryIsolation string

// The levels, from the weakest to the strongest.
const (
	MemoryIsolationNone     MemoryIsolation = "none"     // each process can allocate all free memory
	MemoryIsolationDriver   MemoryIsolation = "driver"   // the driver limits each pod, but not CUDA's managed memory
	MemoryIsolationHardware MemoryIsolation = "hardware" // a GPU or GPU instance that is not shared
)

// ComputeIsolation is the level of isolation between the pods that share the compute time of a device.
type ComputeIsolation string

// The levels, from the weakest to the strongest.
const (
	ComputeIsolationTimeSlice ComputeIsolation = "timeslice" // processes take turns
	ComputeIsolationCeiling   ComputeIsolation = "ceiling"   // each claim or pod can use a limited number of multiprocessors
	ComputeIsolationHardware  ComputeIsolation = "hardware"  // a GPU or GPU instance that is not shared
)

// MemoryIsolationLevels are the levels, from the weakest to the strongest.
var MemoryIsolationLevels = []MemoryIsolation{MemoryIsolationNone, MemoryIsolationDriver, MemoryIsolationHardware}

// ComputeIsolationLevels are the levels, from the weakest to the strongest.
var ComputeIsolationLevels = []ComputeIsolation{ComputeIsolationTimeSlice, ComputeIsolationCeiling, ComputeIsolationHardware}

// Isolation is the isolation between the pods that share a device.
type Isolation struct {
	Memory  MemoryIsolation
	Compute ComputeIsolation
}

func (i Isolation) String() string { return fmt.Sprintf("memory %s, compute %s", i.Memory, i.Compute) }

// Isolation returns the isolation of the pods that share a device, or the GPU instance of a Subdivided one. A device whose
// limits cannot be enforced has the isolation of one without limits.
func (d Device) Isolation() Isolation {
	if d.Unenforceable {
		return TimeSliced.isolation()
	}
	level := d.Class.isolation()
	if d.Subdivided {
		// Compute instances have their own multiprocessors. The driver's documentation promises isolation from faults
		// for GPU instances only.
		level = level.weaker(Isolation{MemoryIsolationNone, ComputeIsolationCeiling})
	}
	return level
}

// isolation returns the isolation of shares of this class. The empty class is that of a device that is not shared.
func (c Class) isolation() Isolation {
	switch c {
	case "":
		return Isolation{MemoryIsolationHardware, ComputeIsolationHardware}
	case Ceiled:
		return Isolation{MemoryIsolationDriver, ComputeIsolationCeiling}
	case MemoryLimited:
		return Isolation{MemoryIsolationDriver, ComputeIsolationTimeSlice}
	}
	return Isolation{MemoryIsolationNone, ComputeIsolationTimeSlice}
}

// WeakestIsolation returns the weakest isolation of the devices that a node could advertise; the zero value if there
// are none. Excluded devices and those that are gone do not count. shared reports whether any is shared.
func (p Policy) WeakestIsolation(inv *gpu.Inventory) (weakest Isolation, shared bool) {
	for _, a := range Assign(inv, p) {
		if !a.Rule.Exclude && a.Device.Fault.Code != gpu.FaultGone {
			weakest = weakest.weaker(a.Device.Isolation())
			shared = shared || a.Device.Class != "" || a.Device.Subdivided
		}
	}
	return weakest, shared
}

// weaker returns the weaker memory level and the weaker compute level of two. An unset level counts as the strongest.
func (i Isolation) weaker(j Isolation) Isolation {
	return Isolation{weakerLevel(MemoryIsolationLevels, i.Memory, j.Memory), weakerLevel(ComputeIsolationLevels, i.Compute, j.Compute)}
}

func weakerLevel[L ~string](levels []L, a, b L) L {
	if a != "" && slices.Index(levels, a) <= slices.Index(levels, b) || b == "" {
		return a
	}
	return cmp.Or(b, a)
}
