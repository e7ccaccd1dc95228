package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// link fills in the Links of each two GPUs. devices are their handles, by UUID. A link that cannot be
// read is left unknown: it only makes the choice among healthy GPUs worse, and must not make one
// unhealthy.
func (w *worker) link(gpus []gpu.GPU, devices map[string]nvml.Device) error {
	device := func(i int) nvml.Device { return devices[gpus[i].UUID] }
	lanes := make([]nvlinks, len(gpus))
	paths := make([][]gpu.PCIePath, len(gpus)) // of each to those after it
	err := w.each(indexes(gpus), func(i int) { lanes[i] = w.nvlinks(device(i)) })
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
			l := gpu.Link{NVLinks: lanes[i].to(lanes[j], gpus[j].PCIBusID), PCIe: paths[i][j-i-1]}
			l.Peer = gpus[j].UUID
			gpus[i].Links = append(gpus[i].Links, l)
			l.Peer = gpus[i].UUID
			gpus[j].Links = append(gpus[j].Links, l)
		}
	}
	return nil
}

// nvlinks counts the active NVLinks of one GPU by where they lead.
type nvlinks struct {
	direct   map[string]int // peer's PCI bus id → links
	switched int            // links into the NVSwitch fabric, which reaches all
}

// to counts the links to the GPU at busID whose own links are theirs.
func (l nvlinks) to(theirs nvlinks, busID string) int {
	return l.direct[busID] + min(l.switched, theirs.switched)
}

func (s session) nvlinks(dev nvml.Device) nvlinks {
	found := nvlinks{direct: map[string]int{}}
	typed := s.has("nvmlDeviceGetNvLinkRemoteDeviceType")
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := dev.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			break // the GPU has no more links, or none at all
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

// busID spells a PCI address as sysfs does. NVML's own string has eight
// digits of domain, and a GPU's function is always 0.
func busID(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}
