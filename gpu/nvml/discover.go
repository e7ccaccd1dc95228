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
	inv := &gpu.Inventory{}
	var count int
	var failed error
	if err := w.step(driver.Step{Index: driver.Nobody}, func() { inv.Driver, count, failed = w.driver() }); err != nil || failed != nil {
		return nil, nil, errors.Join(err, failed)
	}
	var asked []int
	for index := range count {
		if !slices.Contains(w.work.Doubted, index) {
			asked = append(asked, index)
		}
	}
	read := make([]struct {
		gpu gpu.GPU
		dev nvml.Device
		err error
	}, len(asked))
	if err := w.each(asked, func(i int) { read[i].gpu, read[i].dev, read[i].err = w.read(asked[i]) }); err != nil {
		return nil, nil, err
	}
	devices := map[string]nvml.Device{}
	for i, r := range read {
		if r.err != nil {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: asked[i], Fault: unread(r.err)})
			continue
		}
		inv.GPUs = append(inv.GPUs, r.gpu)
		devices[r.gpu.UUID] = r.dev
	}
	isolate(inv)
	for _, g := range inv.GPUs {
		w.uuids[devices[g.UUID]] = g.UUID
	}
	return inv, devices, w.link(inv.GPUs, devices)
}

// driver reads the driver's version and how many GPUs it has.
func (s session) driver() (d gpu.Driver, count int, err error) {
	version, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return d, 0, fmt.Errorf("reading the driver version: %w", ret)
	}
	// CUDA's number is 1000 × major + 10 × minor.
	cuda, ret := s.lib.SystemGetCudaDriverVersion()
	if ret != nvml.SUCCESS {
		return d, 0, fmt.Errorf("reading the CUDA version of driver %s: %w", version, ret)
	}
	count, ret = s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return d, 0, fmt.Errorf("counting the GPUs: %w", ret)
	}
	if count < 0 || count > driver.MaxGPUs {
		return d, 0, fmt.Errorf("counting the GPUs: driver %s has %d, and a node at most %d; reload the driver", version, count, driver.MaxGPUs)
	}
	return gpu.Driver{
		Version: version,
		CUDA:    gpu.CUDAVersion{Major: cuda / 1000, Minor: cuda % 1000 / 10},

		Confidential: s.confidential(),
	}, count, nil
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
