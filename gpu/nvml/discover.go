package nvml

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// session is an initialized NVML library on a node.
type session struct {
	lib      nvml.Interface
	node     host.Root
	platform gpu.Platform
	samePIDs bool // see sharesPIDs
}

func initError(library string, ret nvml.Return) error {
	remedy := "compare with nvidia-smi on the node, which uses the same library"
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		remedy = "set --nvml-library to a library that this program can load"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		remedy = "run modprobe nvidia, and check that its device nodes exist in /dev"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		remedy = "load the kernel module of the library's version, or reboot the node"
	}
	return fmt.Errorf("initializing NVML from %s: %w; %s", library, ret, remedy)
}

// inventory reads all GPUs except the quarantined ones. It also returns their handles, by UUID.
func (w *worker) inventory() (*gpu.Inventory, map[string]nvml.Device, error) {
	inv := &gpu.Inventory{Platform: w.platform}
	w.cgroups = cgroupSupport(w.node) // before the GPUs are read, so that a later change is detected
	var count int
	var errDriver error
	if err := w.step(driver.Step{Index: driver.NoGPU}, func() { inv.Driver, count, errDriver = w.driver() }); err != nil || errDriver != nil {
		return nil, nil, errors.Join(err, errDriver)
	}
	var included []int
	for index := range count {
		if !slices.Contains(w.cfg.Quarantined, index) {
			included = append(included, index)
		}
	}
	read := make([]struct {
		gpu gpu.GPU
		dev nvml.Device
		err error
	}, len(included))
	if err := w.each(included, func(i int) { read[i].gpu, read[i].dev, read[i].err = w.readGPU(included[i]) }); err != nil {
		return nil, nil, err
	}
	devices := map[string]nvml.Device{}
	for i, r := range read {
		if r.err != nil {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: included[i], Fault: readFault(r.err)})
			continue
		}
		inv.GPUs = append(inv.GPUs, r.gpu)
		devices[r.gpu.UUID] = r.dev
	}
	sanitize(inv)
	for _, g := range inv.GPUs {
		w.uuids[devices[g.UUID]] = g.UUID
	}
	return inv, devices, w.link(inv.GPUs, devices)
}

// driver reads the driver's properties and the number of GPUs.
func (s session) driver() (d gpu.Driver, count int, err error) {
	version, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return d, 0, fmt.Errorf("reading the driver version: %w", ret)
	}
	// cuda is 1000 × major + 10 × minor, or 0 on a platform whose NVML does not report it.
	cuda, ret := s.lib.SystemGetCudaDriverVersion()
	if ret != nvml.SUCCESS && s.platform == "" {
		return d, 0, fmt.Errorf("reading the CUDA version of driver %s: %w", version, ret)
	}
	count, ret = s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return d, 0, fmt.Errorf("counting the GPUs: %w", ret)
	}
	if count < 0 || count > driver.MaxGPUs {
		return d, 0, fmt.Errorf("counting the GPUs: driver %s reported %d, more than the maximum of %d; reload the driver", version, count, driver.MaxGPUs)
	}
	return gpu.Driver{
		Version: version,
		CUDA:    gpu.CUDAVersion{Major: cuda / 1000, Minor: cuda % 1000 / 10},

		Confidential: s.confidential(),
	}, count, nil
}

// confidential reports whether confidential computing is enabled, for single or multiple GPUs. It returns true if the
// driver supports the query but fails it: an additional library in containers is harmless, a missing one is not.
func (s session) confidential() bool {
	switch {
	case s.has("nvmlSystemGetConfComputeSettings"):
		settings, ret := s.lib.SystemGetConfComputeSettings()
		return ret != nvml.ERROR_NOT_SUPPORTED && (ret != nvml.SUCCESS ||
			settings.CcFeature != nvml.CC_SYSTEM_FEATURE_DISABLED || settings.MultiGpuMode != nvml.CC_SYSTEM_MULTIGPU_NONE)
	case s.has("nvmlSystemGetConfComputeState"): // older drivers
		state, ret := s.lib.SystemGetConfComputeState()
		return ret != nvml.ERROR_NOT_SUPPORTED && (ret != nvml.SUCCESS || state.CcFeature != nvml.CC_SYSTEM_FEATURE_DISABLED)
	}
	return false
}
