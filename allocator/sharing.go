package allocator

import (
	"fmt"
	"math"

	"github.com/gpucdi/gpucdi/gpu"
)

// ShareUnit is the unit in which ResourceClaims share a device.
type ShareUnit string

// The units.
const (
	ShareMemory   ShareUnit = "memory"   // compute time in cores, and memory
	ShareReplicas ShareUnit = "replicas" // replicas, which take turns and can use all of the memory
)

// WholeCores is all compute time of a device, in cores.
const WholeCores = 100

const (
	// ShareStep is the unit in which memory is allocated to claims, in bytes.
	ShareStep = 1 << 20
	// MinShare is the minimum memory of a claim, in bytes.
	MinShare = 256 << 20
)

// Amount is the part of a shared device that is allocated to a claim, or the total that can be allocated to claims. It
// is zero for a device that is not shared.
type Amount struct {
	Cores    uint64 `json:"cores,omitempty"`    // with ShareMemory
	Memory   uint64 `json:"memory,omitempty"`   // in bytes, with ShareMemory
	Replicas uint64 `json:"replicas,omitempty"` // with ShareReplicas
}

// Add returns the sum of two amounts.
func (a Amount) Add(b Amount) Amount {
	return Amount{a.Cores + b.Cores, a.Memory + b.Memory, a.Replicas + b.Replicas}
}

// of returns the amount of a device with a capacity that a claim has. All cores, and the zero Amount, stand for the whole
// device, since no other claim can use it.
func (a Amount) of(capacity Amount) Amount {
	if a == (Amount{}) || a.Cores >= WholeCores {
		return capacity
	}
	return a
}

// Minus returns the difference of two amounts; 0 where b exceeds a.
func (a Amount) Minus(b Amount) Amount {
	return Amount{a.Cores - min(a.Cores, b.Cores), a.Memory - min(a.Memory, b.Memory), a.Replicas - min(a.Replicas, b.Replicas)}
}

// within reports whether a is at most b.
func (a Amount) within(b Amount) bool {
	return a.Cores <= b.Cores && a.Memory <= b.Memory && a.Replicas <= b.Replicas
}

// Partial reports whether a claim with this amount of cores and memory shares the device. A claim for all cores has the
// device to itself.
func (a Amount) Partial() bool { return a.Cores > 0 && a.Cores < WholeCores }

func (a Amount) String() string {
	if a.Replicas > 0 {
		return fmt.Sprintf("%d replicas", a.Replicas)
	}
	return fmt.Sprintf("%d cores and %d MiB", a.Cores, a.Memory/ShareStep)
}

// SharePlacement selects one of several shared devices with enough capacity for a claim.
type SharePlacement string

// The placements.
const (
	Pack   SharePlacement = "pack"   // the one with the least free capacity
	Spread SharePlacement = "spread" // the one with the most free capacity
)

// Compute is the mechanism that divides the compute time of a shared device.
type Compute string

// The mechanisms.
const (
	ComputeTimeSlice Compute = "timeslice" // processes take turns; cores are booked by the scheduler, but not enforced
	ComputeCeiling   Compute = "ceiling"   // with share: memory, MPS limits each claim to its cores, or to its computeCeiling
)

// mpsMemory is the memory that an MPS server uses of each GPU, in bytes. It cannot be offered.
const mpsMemory = 1 << 30

// Shares configures the devices that ResourceClaims share.
type Shares struct {
	// Fraction of the memory of each GPU to offer, above 0 and at most 1.
	MemoryScaling float64 `yaml:"memoryScaling"`

	// Memory of each GPU that is not offered, such as 512Mi, for example for CUDA contexts.
	Reserve string `yaml:"reserve"`

	// GPU to allocate to a claim, of those with enough free capacity.
	Placement SharePlacement `yaml:"placement"`

	// Mechanism that divides the compute time.
	Compute Compute `yaml:"compute"`

	// Maximum of the computeCeiling of a claim, in percent, from 1 to 100. It does not reduce the cores of a claim.
	MaxCeiling int `yaml:"maxCeiling"`
}

// DefaultShares returns the Shares of a config that sets none of their keys.
func DefaultShares() Shares {
	return Shares{MemoryScaling: 1, Reserve: "0", Placement: Pack, Compute: ComputeTimeSlice, MaxCeiling: 100}
}

// Problems returns the problems of the config, each starting with its key.
func (s Shares) Problems() (found []string) {
	invalid := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if !(s.MemoryScaling > 0 && s.MemoryScaling <= 1) { // false for NaN
		invalid("memoryScaling: want a number above 0 and at most 1, got %v", s.MemoryScaling)
	}
	if _, ok := s.reserved(); !ok {
		invalid("reserve: want a size such as 512Mi, or 0, got %q", s.Reserve)
	}
	if s.Placement != Pack && s.Placement != Spread {
		invalid("placement: want %s or %s, got %q", Pack, Spread, s.Placement)
	}
	if s.Compute != ComputeTimeSlice && s.Compute != ComputeCeiling {
		invalid("compute: want %s or %s, got %q", ComputeTimeSlice, ComputeCeiling, s.Compute)
	}
	if s.MaxCeiling < 1 || s.MaxCeiling > 100 {
		invalid("maxCeiling: want a percentage from 1 to 100, got %d", s.MaxCeiling)
	}
	return found
}

func (s Shares) reserved() (bytes float64, ok bool) {
	if s.Reserve == "0" || s.Reserve == "" {
		return 0, true
	}
	bytes, ok = parseMemory(s.Reserve)
	return bytes, ok && !math.IsInf(bytes, 1)
}

// offered returns the memory that claims can get of a device with this much memory and shares of a class, in bytes, a
// multiple of ShareStep.
func (s Shares) offered(class Class, memory uint64) uint64 {
	reserved, _ := s.reserved()
	if class == Ceiled {
		reserved += mpsMemory
	}
	bytes := (float64(memory) - reserved) * s.MemoryScaling
	return uint64(max(0, bytes)) / ShareStep * ShareStep
}

// capacity returns the total that claims can get of a device with this much memory, in bytes, and shares of a class; zero
// if the rule does not share it between claims. The fault is set if the memory is unknown or does not suffice.
func (p Policy) capacity(r Rule, class Class, memory uint64) (Amount, gpu.Fault) {
	switch r.Share {
	case ShareReplicas:
		return Amount{Replicas: uint64(r.Replicas)}, gpu.Fault{}
	case ShareMemory:
		offered := p.Shares.offered(class, memory)
		switch {
		case memory == 0:
			return Amount{}, configFault("remove share from its rule", "cannot be shared by memory: the driver does not report its size")
		case offered <= MinShare: // the API server requires a range of at least one step
			return Amount{}, configFault("reduce shares.reserve, increase shares.memoryScaling, or remove share from its rule",
				"cannot be shared by memory: %d MiB are offered, but more than %d MiB are required", offered/ShareStep, MinShare/ShareStep)
		}
		return Amount{Cores: WholeCores, Memory: offered}, gpu.Fault{}
	}
	return Amount{}, gpu.Fault{}
}

// sharingProblems returns the problems of the key share and the keys that depend on it, each starting with the key.
// mode is the mode of the rule.
func (r Rule) sharingProblems(mode Mode) (found []string) {
	invalid := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	switch {
	case mode == ModeDRA && r.Share == "" && (r.Replicas != 0 || r.Rename != "" || r.Limits != ""):
		invalid(": want share in mode %s, or mode %s with replicas, rename and limits", ModeDRA, ModeDevicePlugin)
	case r.Share == "":
	case r.Share != ShareMemory && r.Share != ShareReplicas:
		invalid(".share: want %s, %s or nothing, got %q", ShareMemory, ShareReplicas, r.Share)
	case mode != ModeDRA:
		invalid(".share: want mode %s, got %s; in that mode, use replicas", ModeDRA, mode)
	case r.Rename != "" || r.FailRequestsGreaterThanOne:
		invalid(".share: want neither rename nor failRequestsGreaterThanOne, which are for mode %s", ModeDevicePlugin)
	case r.Share == ShareReplicas && r.Replicas == 0:
		invalid(".replicas: want the number of claims that can share each device, got none")
	case r.Share == ShareReplicas && r.Limits != "":
		invalid(".limits: want share: %s, since replicas of claims have no limits", ShareMemory)
	case r.Share == ShareMemory && (r.Replicas != 0 || r.Limits != ""):
		invalid(".share: want neither replicas nor limits with %s, since each claim gets the memory that it requests", ShareMemory)
	}
	return found
}
