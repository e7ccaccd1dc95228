package nvml

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// platformGPU returns a GPU with the UUID from NVML, and the attributes that are known without NVML. On a Jetson, NVML
// supports few attributes, and its UUID may lack the prefix.
func (s session) platformGPU(uuid string) gpu.GPU {
	g := gpu.GPU{Minor: gpu.MinorUnknown, NUMANode: gpu.NUMAUnknown, Architecture: gpu.ArchitectureUnknown}
	if s.platform == gpu.Jetson {
		g, _ = driver.JetsonGPU(s.node) // on an error, with the attributes read before it
		uuid = "GPU-" + strings.TrimPrefix(uuid, "GPU-")
	}
	g.UUID = uuid
	return g
}

// readPlatformLocation reads the PCI bus ID on WSL2, which is that of the Windows host. The minor number stays unknown,
// and the sysfs of the VM has no such device.
func (s session) readPlatformLocation(g *gpu.GPU, dev nvml.Device) {
	if s.platform == gpu.Jetson {
		return
	}
	if pci, ret := dev.GetPciInfo(); ret == nvml.SUCCESS {
		g.PCIBusID = busID(pci)
	}
}
