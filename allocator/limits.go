package allocator

import (
	"cmp"
	"fmt"

	"github.com/gpucdi/gpucdi/gpu"
)

// Limits is what the driver limits for the replicas of a device, so that each gets an equal part.
type Limits string

// LimitMemory limits the memory that the processes of a pod can allocate on a GPU.
const LimitMemory Limits = "memory"

// Level is how strictly limits have to be enforced. By default a device is unhealthy if its driver cannot enforce them.
type Level string

// LevelAny also accepts no enforcement.
const LevelAny Level = "any"

// LimitsMemory reports whether any rule limits the memory of replicas.
func (p Policy) LimitsMemory() bool {
	for _, r := range p.Rules {
		if r.Limits == LimitMemory {
			return true
		}
	}
	return false
}

// LimitsMemory reports whether a pod may hold a replica with limited memory, possibly of an earlier config.
func (l Ledger) LimitsMemory() bool {
	for i := range l.entries {
		if l.entries[i].Part.Share.Class == MemoryLimited {
			return true
		}
	}
	return false
}

// limitProblems returns the problems of the keys limits and level, each starting with the key.
func (r Rule) limitProblems() (found []string) {
	if r.Limits != "" && r.Limits != LimitMemory {
		found = append(found, fmt.Sprintf(".limits: want %s or nothing, got %q", LimitMemory, r.Limits))
	}
	switch {
	case r.Level != "" && r.Level != LevelAny:
		found = append(found, fmt.Sprintf(".level: want %s or nothing, got %q", LevelAny, r.Level))
	case r.Level != "" && r.Limits == "":
		found = append(found, ".level: want limits, since it is how strictly they have to be enforced")
	}
	return found
}

// class returns the class of the replicas of a GPU, and the fault of a GPU whose limits cannot be enforced.
func (r Rule) class(g gpu.GPU) (Class, gpu.Fault) {
	switch {
	case r.Replicas == 0:
		return "", gpu.Fault{}
	case r.Limits != LimitMemory, r.Level == LevelAny && g.MemoryLimits != gpu.MemoryLimitsSupported:
		return TimeSliced, gpu.Fault{}
	case g.MemoryLimits != gpu.MemoryLimitsSupported:
		return MemoryLimited, configFault("or set level: any in its rule to share it without limits",
			"GPU memory of pods cannot be limited: %s", cmp.Or(g.MemoryLimits.Reason(), "the driver does not report whether it can be"))
	}
	return MemoryLimited, gpu.Fault{}
}

// MemoryLimited reports whether the resource has a device whose replicas have limited memory.
func (r *Resource) MemoryLimited() bool {
	for _, d := range r.Devices {
		if d.Class == MemoryLimited {
			return true
		}
	}
	return false
}

// MemoryLimits returns how much memory of each GPU a pod with these parts can allocate, in bytes by UUID. It omits GPUs
// that the parts do not limit.
func MemoryLimits(inv *gpu.Inventory, parts []Part) (map[string]uint64, error) {
	limits := map[string]uint64{}
	for _, p := range parts {
		if p.Share.Class != MemoryLimited {
			continue
		}
		g, found := inv.Find(p.GPU)
		if !found || g.MemoryBytes == 0 {
			return nil, fmt.Errorf("the driver does not report the memory of %s", p.GPU)
		}
		limits[p.GPU] += g.MemoryBytes / uint64(p.Share.Count)
	}
	return limits, nil
}
