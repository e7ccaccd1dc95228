package allocator

import (
	"cmp"
	"fmt"
	"slices"

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

// LimitsMemory reports whether a rule limits the memory of replicas of a resource; if resource is empty, of any resource
// or of ResourceClaims.
func (p Policy) LimitsMemory(resource string) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool {
		if resource == "" && r.Share == ShareMemory {
			return true
		}
		unnamed := r.Name == "" && IsStandardResource(resource) // the rule keeps the default resources of its devices
		return r.Limits == LimitMemory && (resource == "" || unnamed || r.Resource(r.Name) == resource)
	})
}

// LimitsMemory reports whether a pod may hold a replica of a resource with limited memory, possibly of an earlier config;
// if resource is empty, of any resource or through a claim.
func (l Ledger) LimitsMemory(resource string) bool {
	return slices.ContainsFunc(l.entries, func(e Entry) bool {
		return e.Part.Share.Class.limited() && (resource == "" || e.Outlet == resource)
	})
}

// limitProblems returns the problems of the keys limits and level, each starting with the key.
func (r Rule) limitProblems() (found []string) {
	if r.Limits != "" && r.Limits != LimitMemory {
		found = append(found, fmt.Sprintf(".limits: want %s or nothing, got %q", LimitMemory, r.Limits))
	}
	switch {
	case r.Level != "" && r.Level != LevelAny:
		found = append(found, fmt.Sprintf(".level: want %s or nothing, got %q", LevelAny, r.Level))
	case r.Level != "" && r.Limits == "" && r.Share != ShareMemory:
		found = append(found, ".level: want limits or share: memory, since it is how strictly they have to be enforced")
	}
	return found
}

// class returns the class of the shares of a GPU, and the fault of a GPU whose limits cannot be enforced.
func (r Rule) class(g gpu.GPU) (Class, gpu.Fault) {
	switch {
	case r.Replicas == 0 && r.Share == "":
		return "", gpu.Fault{}
	case r.Limits != LimitMemory && r.Share != ShareMemory:
		return TimeSliced, gpu.Fault{}
	}
	problem := r.notEnforceable(g)
	switch {
	case problem == "":
		return MemoryLimited, gpu.Fault{}
	case r.Level == LevelAny:
		return TimeSliced, gpu.Fault{}
	}
	return MemoryLimited, configFault("or set level: any in its rule to share it without limits", "GPU memory of pods cannot be limited: %s", problem)
}

// notEnforceable returns why the memory of the shares of a GPU cannot be limited; empty if it can be.
func (r Rule) notEnforceable(g gpu.GPU) string {
	switch {
	case g.MemoryLimits != gpu.MemoryLimitsSupported:
		return cmp.Or(g.MemoryLimits.Reason(), "the driver does not report whether it can be")
	case g.MemoryBytes == 0:
		return "the driver does not report the size of its memory"
	case r.Replicas != 0 && g.MemoryBytes/uint64(r.Replicas) < gpu.MinMemoryLimit:
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

// MemoryLimits returns how much memory of each GPU a pod with these parts can allocate, in bytes by UUID. It omits GPUs
// that the parts do not limit.
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
		limits[p.GPU] += g.MemoryBytes / uint64(p.Share.Count)
	}
	return limits, nil
}
