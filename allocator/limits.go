package allocator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
)

// Limits selects the limits that the driver enforces on the replicas of a device, so that each gets an equal part.
type Limits string

// The limits.
const (
	LimitMemory           Limits = "memory"         // the memory that the processes of a pod can allocate on a GPU
	LimitMemoryAndCompute Limits = "memory+compute" // also the compute time, through MPS
)

// Level is the required enforcement of limits. By default a device is unhealthy if its driver cannot enforce them.
type Level string

// LevelAny accepts that limits are not enforced.
const LevelAny Level = "any"

// LimitsMemory reports whether a rule limits the memory of replicas of a resource or, if resource is empty, the memory
// of any replicas or ResourceClaims.
func (p Policy) LimitsMemory(resource string) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool {
		if resource == "" && r.Share == ShareMemory {
			return true
		}
		unnamed := r.Name == "" && IsStandardResource(resource) // the rule keeps the default resources of its devices
		return r.Limits != "" && (resource == "" || unnamed || r.Resource(r.Name) == resource)
	})
}

// LimitsCompute reports whether a rule limits the compute time of replicas.
func (p Policy) LimitsCompute() bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Limits == LimitMemoryAndCompute })
}

// LimitsMemory reports whether a resource, or any outlet if resource is empty, has an entry with limited memory,
// possibly of an earlier config.
func (l Ledger) LimitsMemory(resource string) bool {
	return slices.ContainsFunc(l.entries, func(e Entry) bool {
		return e.Part.Share.Class.limited() && (resource == "" || e.Outlet == resource)
	})
}

// limitProblems returns the problems of the keys limits and level, each starting with the key.
func (r Rule) limitProblems() (found []string) {
	switch r.Limits {
	case "", LimitMemory:
	case LimitMemoryAndCompute:
		if !r.FailRequestsGreaterThanOne {
			found = append(found, fmt.Sprintf(".failRequestsGreaterThanOne: want true with limits: %s, since a program uses the MPS server of one replica", r.Limits))
		}
		if r.Replicas > maxCeiled {
			found = append(found, fmt.Sprintf(".replicas: want at most %d with limits: %s, got %d", maxCeiled, r.Limits, r.Replicas))
		}
	default:
		found = append(found, fmt.Sprintf(".limits: want %s, %s or nothing, got %q", LimitMemory, LimitMemoryAndCompute, r.Limits))
	}
	switch {
	case r.Level != "" && r.Level != LevelAny:
		found = append(found, fmt.Sprintf(".level: want %s or nothing, got %q", LevelAny, r.Level))
	case r.Level != "" && r.Limits == "" && r.Share != ShareMemory:
		found = append(found, ".level: want limits or share: memory, since level applies only to these")
	}
	return found
}

// class returns the class of the shares of a GPU, and the fault of a GPU whose limits cannot be enforced.
func (r Rule) class(g gpu.GPU, compute Compute) (Class, gpu.Fault) {
	switch {
	case r.Replicas == 0 && r.Share == "":
		return "", gpu.Fault{}
	case r.Limits == "" && r.Share != ShareMemory:
		return TimeSliced, gpu.Fault{}
	}
	class := MemoryLimited
	if r.Share == ShareMemory && compute == ComputeCeiling || r.Limits == LimitMemoryAndCompute {
		class = Ceiled // requires the same driver as memory limits
	}
	problem := r.notEnforceable(g, class)
	switch {
	case problem == "":
		return class, gpu.Fault{}
	case r.Level == LevelAny:
		return TimeSliced, gpu.Fault{}
	}
	// The problem can end with a remedy, to which this one is an alternative.
	return class, configFault("or set level: any in its rule to share it without limits", "GPU memory of pods cannot be limited: %s", problem)
}

// notEnforceable returns why the memory of the shares of a GPU cannot be limited; empty if it can be.
func (r Rule) notEnforceable(g gpu.GPU, class Class) string {
	switch {
	case g.MemoryLimits != gpu.MemoryLimitsSupported:
		return cmp.Or(g.MemoryLimits.Reason(), "the driver does not report whether it can be")
	case g.MemoryBytes == 0:
		return "the driver does not report the size of its memory"
	case r.Replicas != 0 && (Share{Class: class, Count: r.Replicas}).memory(g.MemoryBytes) < gpu.MinMemoryLimit:
		return "the part of a replica is less than 2 MiB; reduce replicas"
	}
	return ""
}

// MemoryLimited reports whether the resource has a device whose replicas have limited memory.
func (r *Resource) MemoryLimited() bool {
	for _, d := range r.Devices {
		if d.Class.limited() {
			return true
		}
	}
	return false
}

// MemoryLimits returns the memory limits of a pod with these parts, in bytes by UUID of the GPU. It omits GPUs whose
// parts have no limit. An error means that the driver does not report the memory of a GPU.
func MemoryLimits(inv *gpu.Inventory, parts []Part) (map[string]uint64, error) {
	limits := map[string]uint64{}
	for _, p := range parts {
		if !p.Share.Class.limited() {
			continue
		}
		g, found := inv.Find(p.GPU)
		if !found || g.MemoryBytes == 0 {
			return nil, fmt.Errorf("the driver does not report the memory of %s", p.GPU)
		}
		limits[p.GPU] += p.Share.memory(g.MemoryBytes)
	}
	return limits, nil
}

// Ceilings returns the ceilings of the compute time of a pod with these parts, in percent by UUID of the GPU. It omits
// GPUs whose parts have none.
func Ceilings(parts []Part) map[string]int {
	ceilings := map[string]int{}
	for _, p := range parts {
		if p.Share.Class == Ceiled {
			ceilings[p.GPU] += p.Share.Percentage()
		}
	}
	return ceilings
}

// memory returns the memory of one of Count shares of a GPU with this much memory, in bytes.
func (s Share) memory(bytes uint64) uint64 {
	if s.Class == Ceiled {
		bytes -= min(bytes, mpsMemory)
	}
	return bytes / uint64(s.Count)
}

// maxCeiled is the maximum number of replicas of a GPU with limited compute time, each with at least 1 % of it.
const maxCeiled = 100

// Percentage returns the maximum compute time of one of Count shares with the class Ceiled, in percent of the GPU.
func (s Share) Percentage() int { return 100 / s.Count }
