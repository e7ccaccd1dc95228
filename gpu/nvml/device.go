package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// readGPU reads a GPU. It returns an error if the GPU cannot be opened or its UUID cannot be read; any other failure
// becomes the GPU's Fault.
func (s session) readGPU(index int) (gpu.GPU, nvml.Device, error) {
	dev, ret := s.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return gpu.GPU{}, nil, fmt.Errorf("opening GPU %d: %w", index, ret)
	}
	uuid, ret := dev.GetUUID()
	if ret != nvml.SUCCESS {
		return gpu.GPU{}, nil, fmt.Errorf("reading the UUID of GPU %d: %w", index, ret)
	}
	g := s.platformGPU(uuid)
	g.Index = index
	err := errors.Join(s.readLocation(&g, dev), s.readAttributes(&g, dev))
	if err != nil {
		g.Fault, g.Partial = readFault(err), true
	}
	return g, dev, nil
}

// readLocation reads the minor number and the PCI location, without which the GPU cannot be allocated.
func (s session) readLocation(g *gpu.GPU, dev nvml.Device) error {
	if s.platform != "" {
		s.readPlatformLocation(g, dev)
		return nil
	}
	minor, ret := dev.GetMinorNumber()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the minor number: %w", ret)
	}
	g.Minor = minor
	pci, ret := dev.GetPciInfo()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the PCI address: %w", ret)
	}
	g.PCIBusID = busID(pci)
	numa, errNUMA := s.pciFile(g.PCIBusID, "numa_node")
	if n, err := strconv.Atoi(numa); err == nil && n >= 0 { // -1 if the firmware does not report it
		g.NUMANode = n
	}
	class, errClass := s.pciFile(g.PCIBusID, "class")
	g.PCIClass = class
	s.readPCIeHierarchy(g)
	s.readVGPU(g)
	return errors.Join(errNUMA, errClass)
}

// pciFile reads a sysfs attribute of a PCI device. It returns "" if the attribute does not exist, as in a sandbox that
// hides the PCI bus.
func (s session) pciFile(busID, name string) (string, error) {
	data, err := s.node.ReadFile(path.Join("/sys/bus/pci/devices", busID, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the PCI attribute %s: %w", name, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// readAttributes reads the remaining attributes. Those that the driver or the GPU does not support, and informational
// ones that cannot be read, are left unset; any other failure is an error.
func (s session) readAttributes(g *gpu.GPU, dev nvml.Device) error {
	var errs []error
	succeeded := func(what string, ret nvml.Return) bool {
		switch ret {
		case nvml.SUCCESS:
			return true
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		default:
			errs = append(errs, fmt.Errorf("reading the %s: %w", what, ret))
		}
		return false
	}

	if name, ret := dev.GetName(); succeeded("product name", ret) {
		g.Product = name
	}
	if memory, ret := dev.GetMemoryInfo(); succeeded("memory size", ret) {
		g.MemoryBytes = memory.Total
	}
	if major, minor, ret := dev.GetCudaComputeCapability(); succeeded("compute capability", ret) {
		g.ComputeCapability = gpu.ComputeCapability{Major: major, Minor: minor}
	}
	if s.has("nvmlDeviceGetArchitecture") {
		if arch, ret := dev.GetArchitecture(); succeeded("architecture", ret) && architecture(arch) != gpu.ArchitectureUnknown {
			g.Architecture = architecture(arch)
		}
	}
	s.readDescription(g, dev)
	s.readClique(g, dev)
	errs = append(errs, s.readMIG(g, dev))
	s.readMemoryLimits(g, dev)
	return errors.Join(errs...)
}

// has reports whether the loaded NVML has a function. Calling a missing function would crash the process, because
// symbols are bound lazily.
func (s session) has(symbol string) bool {
	return s.lib.Extensions().LookupSymbol(symbol) == nil
}

func architecture(a nvml.DeviceArchitecture) gpu.Architecture {
	switch a {
	case nvml.DEVICE_ARCH_KEPLER:
		return "Kepler"
	case nvml.DEVICE_ARCH_MAXWELL:
		return "Maxwell"
	case nvml.DEVICE_ARCH_PASCAL:
		return "Pascal"
	case nvml.DEVICE_ARCH_VOLTA:
		return "Volta"
	case nvml.DEVICE_ARCH_TURING:
		return "Turing"
	case nvml.DEVICE_ARCH_AMPERE:
		return "Ampere"
	case nvml.DEVICE_ARCH_ADA:
		return "Ada"
	case nvml.DEVICE_ARCH_HOPPER:
		return "Hopper"
	case nvml.DEVICE_ARCH_BLACKWELL:
		return "Blackwell"
	case nvml.DEVICE_ARCH_RUBIN:
		return "Rubin"
	default:
		return gpu.ArchitectureUnknown
	}
}
