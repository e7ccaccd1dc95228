package nvml

import (
	"cmp"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// cgroupSupport returns why the node's cgroups do not permit memory limits; empty if they do.
func cgroupSupport(node host.Root) gpu.MemoryLimits {
	switch {
	case !node.HasCgroup2():
		return gpu.MemoryLimitsCgroupV1
	case node.PodsCgroup() == "":
		return gpu.MemoryLimitsNoPods
	}
	return ""
}

// readMemoryLimits sets g.MemoryLimits. It must be called after readMIG.
func (s session) readMemoryLimits(g *gpu.GPU, dev nvml.Device) {
	switch {
	case s.platform != "":
		return
	case !s.hasMemoryLimits():
		g.MemoryLimits = gpu.MemoryLimitsOldDriver
		return
	}
	switch cgroups := cgroupSupport(s.node); {
	case cgroups != "":
		g.MemoryLimits = cgroups
	case g.MIG == gpu.MIGEnabled:
		g.MemoryLimits = gpu.MemoryLimitsMIG
	default:
		g.MemoryLimits = tryMemoryLimits(dev)
	}
}

// tryMemoryLimits reads the limit of a cgroup that exists in this process's mount namespace: the cgroup of all pods, or
// the root, which is the process's own cgroup in a container with a cgroup namespace. Errors that may be transient
// leave the value unknown.
func tryMemoryLimits(dev nvml.Device) gpu.MemoryLimits {
	_, ret := dev.GetMemoryLimits_v1(cmp.Or(host.NewRoot("/").PodsCgroup(), host.CgroupDir))
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND: // NOT_FOUND: the cgroup has no limits
		return gpu.MemoryLimitsSupported
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return gpu.MemoryLimitsOldDriver
	case nvml.ERROR_NOT_SUPPORTED:
		return gpu.MemoryLimitsUnsupported
	}
	return ""
}
