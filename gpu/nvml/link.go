package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// link sets the Links of the GPUs. devices are their handles, by UUID. A topology that cannot be read stays unknown: it
// makes preferred allocations worse, but must not make a GPU unhealthy.
func (w *worker) link(gpus []gpu.GPU, devices map[string]nvml.Device) error {
	device := func(i int) nvml.Device { return devices[gpus[i].UUID] }
	counts := make([]nvlinks, len(gpus))
	paths := make([][]gpu.PCIePath, len(gpus)) // from each GPU to those after it in gpus
	err := w.each(indexes(gpus), func(i int) { counts[i] = w.nvlinks(device(i)) })
	if err != nil {
		return err
	}
	err = w.each(indexes(gpus), func(i int) {
		for j := i + 1; j < len(gpus); j++ {
			paths[i] = append(paths[i], pciePath(device(i), device(j)))
		}
	})
	if err != nil {
		return err
	}
	for i := range gpus {
		for j := i + 1; j < len(gpus); j++ {
			l := gpu.Link{NVLinks: counts[i].to(counts[j], gpus[j].PCIBusID), PCIe: paths[i][j-i-1]}
			l.Peer = gpus[j].UUID
			gpus[i].Links = append(gpus[i].Links, l)
			l.Peer = gpus[i].UUID
			gpus[j].Links = append(gpus[j].Links, l)
		}
	}
	return nil
}

// nvlinks are the numbers of active NVLinks of a GPU.
type nvlinks struct {
	direct   map[string]int // by the peer's PCI bus ID
	switched int            // to NVSwitches, which connect all GPUs
}

// to returns the number of NVLinks to the GPU at busID, whose own NVLinks are peer.
func (l nvlinks) to(peer nvlinks, busID string) int {
	return l.direct[busID] + min(l.switched, peer.switched)
}

// nvlinks counts the active NVLinks of a GPU.
func (s session) nvlinks(dev nvml.Device) nvlinks {
	found := nvlinks{direct: map[string]int{}}
	typed := s.has("nvmlDeviceGetNvLinkRemoteDeviceType") // older drivers lack it
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := dev.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			break // no more links
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		if typed {
			if kind, ret := dev.GetNvLinkRemoteDeviceType(link); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				found.switched++
				continue
			}
		}
		if pci, ret := dev.GetNvLinkRemotePciInfo(link); ret == nvml.SUCCESS {
			found.direct[busID(pci)]++
		}
	}
	return found
}

func pciePath(a, b nvml.Device) gpu.PCIePath {
	level, ret := a.GetTopologyCommonAncestor(b)
	if ret != nvml.SUCCESS {
		return gpu.PCIeUnknown
	}
	switch level {
	case nvml.TOPOLOGY_INTERNAL:
		return gpu.SameBoard
	case nvml.TOPOLOGY_SINGLE:
		return gpu.OneSwitch
	case nvml.TOPOLOGY_MULTIPLE:
		return gpu.SwitchChain
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return gpu.HostBridge
	case nvml.TOPOLOGY_NODE:
		return gpu.SameNUMANode
	case nvml.TOPOLOGY_SYSTEM:
		return gpu.CrossNUMA
	default:
		return gpu.PCIeUnknown
	}
}

// busID formats a PCI address as in sysfs. NVML's string has a domain of eight digits. The function of a GPU is always
// 0.
func busID(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}
