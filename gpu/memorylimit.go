package gpu

import (
	"fmt"
	"slices"
	"strings"
)

// MemoryLimits is the support for limits on the memory that the processes of a cgroup can allocate on a GPU: supported,
// or the reason that it is not. Each value is also a valid label value. Empty if unknown, and on WSL2 and Jetson.
type MemoryLimits string

// The values of MemoryLimits. The reasons are in the order in which they are checked.
const (
	MemoryLimitsSupported   MemoryLimits = "supported"
	MemoryLimitsOldDriver   MemoryLimits = "driver-older-than-615"
	MemoryLimitsCgroupV1    MemoryLimits = "cgroup-v1"
	MemoryLimitsNoPods      MemoryLimits = "no-pod-cgroups"
	MemoryLimitsMIG         MemoryLimits = "mig-mode"
	MemoryLimitsUnsupported MemoryLimits = "not-supported-by-gpu"
)

// Reason returns the reason that memory limits cannot be set and its remedy, in one line; empty if there is none.
func (l MemoryLimits) Reason() string {
	switch l {
	case MemoryLimitsOldDriver:
		return "the driver is older than 615; install a newer one"
	case MemoryLimitsCgroupV1:
		return "the node uses cgroup v1; boot it with cgroup v2"
	case MemoryLimitsNoPods:
		return "pods have no cgroups; start the kubelet with cgroupsPerQOS: true and a cgroupRoot of at most one level in its config"
	case MemoryLimitsMIG:
		return "the GPU is in MIG mode; MIG devices have memory of their own"
	case MemoryLimitsUnsupported:
		return "the GPU does not support memory limits"
	}
	return ""
}

// MemoryLimitReasons returns the reasons that memory limits cannot be set, each once. A reason that does not apply to
// all GPUs names those that it applies to. GPUs that are gone are ignored.
func MemoryLimitReasons(gpus []GPU) (reasons []string) {
	var order []MemoryLimits
	indexes := map[MemoryLimits][]string{}
	for _, g := range gpus {
		if g.Fault.Code == FaultGone {
			continue
		}
		if !slices.Contains(order, g.MemoryLimits) {
			order = append(order, g.MemoryLimits)
		}
		indexes[g.MemoryLimits] = append(indexes[g.MemoryLimits], fmt.Sprint(g.Index))
	}
	for _, l := range order {
		switch reason := l.Reason(); {
		case reason == "":
		case len(order) == 1:
			reasons = append(reasons, reason)
		default:
			reasons = append(reasons, fmt.Sprintf("GPU %s: %s", strings.Join(indexes[l], ", "), reason))
		}
	}
	return reasons
}

// MemoryUnlimited is the value of a memory limit that is not set. NVML uses the same value.
const MemoryUnlimited = 1<<64 - 1

// MinMemoryLimit is the smallest memory limit that can be set, in bytes: CUDA allocates GPU memory in multiples of it. The
// driver may round a limit down to one.
const MinMemoryLimit = 2 << 20

// ComputeMode determines how many processes may have a compute context on a GPU.
type ComputeMode string

// The compute modes, by the names of nvidia-smi.
const (
	ComputeModeDefault          ComputeMode = "Default"
	ComputeModeProhibited       ComputeMode = "Prohibited"
	ComputeModeExclusiveProcess ComputeMode = "Exclusive_Process"
)

// IsMemoryLimit reports whether a memory limit that the driver reports is the one that was set, in bytes. The driver may
// round a limit down by less than MinMemoryLimit.
func IsMemoryLimit(reported, set uint64) bool {
	return reported <= set && set-reported < MinMemoryLimit
}
