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

// readMemoryLimits sets whether memory limits can be set on a GPU. It must be called after readMIG.
func (s session) readMemoryLimits(g *gpu.GPU, dev nvml.Device) {
	switch cgroups := cgroupSupport(s.node); {
	case s.platform != "":
	case !s.hasMemoryLimits():
		g.MemoryLimits = gpu.MemoryLimitsOldDriver
	case cgroups != "":
		g.MemoryLimits = cgroups
	case g.MIG == gpu.MIGEnabled:
		g.MemoryLimits = gpu.MemoryLimitsMIG
	default:
		g.MemoryLimits = tryMemoryLimits(dev)
	}
}

// tryMemoryLimits reads the limit of a cgroup that this process can see: that of all pods, or its own if it is in a
// container.
func tryMemoryLimits(dev nvml.Device) gpu.MemoryLimits {
	_, ret := dev.GetMemoryLimits_v1(cmp.Or(host.NewRoot("/").PodsCgroup(), host.CgroupDir))
	switch ret {
	case nvml.SUCCESS:
		return gpu.MemoryLimitsSupported
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return gpu.MemoryLimitsOldDriver
	}
	return gpu.MemoryLimitsRefused
}
