package nvml

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// session is NVML between its Init and its Shutdown.
type session struct {
	lib  nvml.Interface
	node host.Root
}

func initError(library string, ret nvml.Return) error {
	advice := "run nvidia-smi on the node: it uses the same library"
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		advice = "the file is not a library that this program can load; name another with --nvml-library"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		advice = "the kernel module is not loaded, or its nodes are missing below /dev: run modprobe nvidia"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		advice = "the kernel module is of another version than the library: reload it, or reboot the node"
	}
	return fmt.Errorf("initialising NVML from %s: %w (%s)", library, ret, advice)
}

// inventory reads all GPUs but the doubted, and returns their handles by UUID.
func (w *worker) inventory() (*gpu.Inventory, map[string]nvml.Device, error) {
	if err := w.asking(driver.Nobody); err != nil {
		return nil, nil, err
	}
	version, err := w.driver()
	if err != nil {
		return nil, nil, err
	}
	count, ret := w.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("counting the GPUs: %w", ret)
	}
	inv := &gpu.Inventory{Driver: version}
	devices := map[string]nvml.Device{}
	for index := range count {
		if slices.Contains(w.work.Doubted, index) {
			continue
		}
		if err := w.asking(index); err != nil {
			return nil, nil, err
		}
		g, dev, err := w.read(index)
		if err != nil {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: index, Fault: err.Error()})
			continue
		}
		inv.GPUs = append(inv.GPUs, g)
		devices[g.UUID] = dev
	}
	if err := w.asking(driver.Nobody); err != nil {
		return nil, nil, err
	}
	w.link(inv.GPUs, devices)
	return inv, devices, nil
}

func (s session) driver() (gpu.Driver, error) {
	version, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return gpu.Driver{}, fmt.Errorf("reading the driver version: %w", ret)
	}
	// CUDA's number is 1000 × major + 10 × minor.
	cuda, ret := s.lib.SystemGetCudaDriverVersion()
	if ret != nvml.SUCCESS {
		return gpu.Driver{}, fmt.Errorf("reading the CUDA version of driver %s: %w", version, ret)
	}
	return gpu.Driver{
		Version: version,
		CUDA:    gpu.CUDAVersion{Major: cuda / 1000, Minor: cuda % 1000 / 10},

		Confidential: s.confidential(),
	}, nil
}

// confidential says whether confidential computing is on, be it between several
// GPUs alone. It is taken to be where a driver that knows of it fails to tell:
// then containers get a library too many, and none too few.
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
