package nvml

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// session is NVML between its Init and its Shutdown.
type session struct {
	lib  nvml.Interface
	node host.Root
}

// Discover loads the NVML library at the local path library, reads every GPU,
// and unloads it again, so that a driver which nobody uses can be replaced.
// A GPU that fails to answer is in the inventory with its fault; the error is
// for what concerns the whole node. NUMA nodes come from node's sysfs.
func Discover(node host.Root, library string) (inv *gpu.Inventory, err error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, initError(library, ret)
	}
	defer func() {
		if ret := lib.Shutdown(); ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("shutting NVML down: %w", ret))
		}
	}()
	inv, _, err = session{lib: lib, node: node}.inventory(nil, func(int) error { return nil })
	return inv, err
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

// inventory reads all GPUs but those with the skipped indexes, and returns
// their handles by UUID. ask is called ahead of calls that may never come back,
// with the index of the GPU that they are about, or nobody.
func (s session) inventory(skip []int, ask func(index int) error) (*gpu.Inventory, map[string]nvml.Device, error) {
	if err := ask(nobody); err != nil {
		return nil, nil, err
	}
	driver, err := s.driver()
	if err != nil {
		return nil, nil, err
	}
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("counting the GPUs: %w", ret)
	}
	inv := &gpu.Inventory{Driver: driver}
	devices := map[string]nvml.Device{}
	for index := range count {
		if slices.Contains(skip, index) {
			continue
		}
		if err := ask(index); err != nil {
			return nil, nil, err
		}
		g, dev, err := s.read(index)
		if err != nil {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: index, Fault: err.Error()})
			continue
		}
		inv.GPUs = append(inv.GPUs, g)
		devices[g.UUID] = dev
	}
	if err := ask(nobody); err != nil {
		return nil, nil, err
	}
	s.link(inv.GPUs, devices)
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
	}, nil
}
