package nvml

import (
	"errors"
	"fmt"

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
	return session{lib: lib, node: node}.inventory()
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

func (s session) inventory() (*gpu.Inventory, error) {
	driver, err := s.driver()
	if err != nil {
		return nil, err
	}
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("counting the GPUs: %w", ret)
	}
	inv := &gpu.Inventory{Driver: driver}
	var devices []nvml.Device // of inv.GPUs, by position
	for index := range count {
		g, dev, err := s.read(index)
		if err != nil {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: index, Fault: err.Error()})
			continue
		}
		inv.GPUs = append(inv.GPUs, g)
		devices = append(devices, dev)
	}
	s.link(inv.GPUs, devices)
	return inv, nil
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
