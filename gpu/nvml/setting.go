package nvml

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// setting executes a command, which reads or changes a setting of a GPU.
func (s session) setting(dev nvml.Device, c driver.Command) driver.Reply {
	switch c.Operation {
	case driver.GetMemoryLimit:
		return s.readMemoryLimit(dev, c.Cgroup)
	case driver.SetMemoryLimit:
		return s.setMemoryLimit(dev, c.Cgroup, c.Limit)
	case driver.GetComputeMode:
		return readComputeMode(dev)
	case driver.SetComputeMode:
		return setComputeMode(dev, c.Mode)
	}
	return driver.Reply{Failed: fmt.Sprintf("unknown operation %q", c.Operation)}
}

func failed(what string, ret nvml.Return) driver.Reply {
	unsupported := ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND
	return driver.Reply{Failed: fmt.Sprintf("%s: %s", what, ret), Unsupported: unsupported}
}

// computeModes are the names of NVML's compute modes; the deprecated EXCLUSIVE_THREAD has none.
var computeModes = map[nvml.ComputeMode]gpu.ComputeMode{
	nvml.COMPUTEMODE_DEFAULT:           gpu.ComputeModeDefault,
	nvml.COMPUTEMODE_PROHIBITED:        gpu.ComputeModeProhibited,
	nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: gpu.ComputeModeExclusiveProcess,
}

func readComputeMode(dev nvml.Device) driver.Reply {
	mode, ret := dev.GetComputeMode()
	if ret != nvml.SUCCESS {
		return failed("reading the compute mode", ret)
	}
	name, known := computeModes[mode]
	if !known {
		return driver.Reply{Failed: fmt.Sprintf("reading the compute mode: unknown mode %d", mode)}
	}
	return driver.Reply{Mode: name}
}

func setComputeMode(dev nvml.Device, mode gpu.ComputeMode) driver.Reply {
	for number, name := range computeModes {
		if name != mode {
			continue
		}
		if ret := dev.SetComputeMode(number); ret != nvml.SUCCESS {
			return failed("setting the compute mode", ret)
		}
		now := readComputeMode(dev)
		if now.Failed == "" && now.Mode != mode {
			now.Failed = fmt.Sprintf("setting the compute mode: the driver reports %s afterwards", now.Mode)
		}
		return now
	}
	return driver.Reply{Failed: fmt.Sprintf("unknown compute mode %q", mode)}
}

// Memory limits of cgroups require driver 615. NVML's soft limit, which reserves memory, is not used: it propagates to
// the ancestors of the cgroup, and stays there when the cgroup is removed.

// memoryLimitFunctions are missing in older drivers.
var memoryLimitFunctions = []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}

// noSoftLimit is the value of a soft limit that is not set.
const noSoftLimit = 0

func (s session) hasMemoryLimits() bool {
	return !slices.ContainsFunc(memoryLimitFunctions, func(f string) bool { return !s.has(f) })
}

func (s session) readMemoryLimit(dev nvml.Device, cgroup string) driver.Reply {
	if !s.hasMemoryLimits() {
		return driver.Reply{Failed: gpu.MemoryLimitsOldDriver.Reason(), Unsupported: true}
	}
	limits, ret := dev.GetMemoryLimits_v1(cgroup)
	switch ret {
	case nvml.SUCCESS:
		return driver.Reply{Limit: limits.HardLimit, Used: limits.CurrentUsed}
	case nvml.ERROR_NOT_FOUND: // the cgroup has no limits
		return driver.Reply{Limit: gpu.MemoryUnlimited}
	}
	return failed("reading the memory limit of cgroup "+cgroup, ret)
}

// setMemoryLimit sets the hard limit and reads it back.
func (s session) setMemoryLimit(dev nvml.Device, cgroup string, limit uint64) driver.Reply {
	switch {
	case !s.hasMemoryLimits():
		return driver.Reply{Failed: gpu.MemoryLimitsOldDriver.Reason(), Unsupported: true}
	case limit < gpu.MinMemoryLimit: // the check below would accept a reported 0
		return driver.Reply{Failed: fmt.Sprintf("setting a memory limit of %d bytes: want at least %d", limit, gpu.MinMemoryLimit)}
	}
	if ret := dev.SetMemoryLimits_v1(cgroup, noSoftLimit, limit); ret != nvml.SUCCESS {
		return failed("setting the memory limit of cgroup "+cgroup, ret)
	}
	now := s.readMemoryLimit(dev, cgroup)
	if now.Failed == "" && !gpu.IsMemoryLimit(now.Limit, limit) {
		now.Failed = fmt.Sprintf("setting the memory limit of cgroup %s to %d bytes: the driver reports %d afterwards", cgroup, limit, now.Limit)
	}
	return now
}
