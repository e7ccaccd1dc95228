package nvml

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// Names of sysfs directories below /sys/devices.
var (
	pcieRootName  = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)
	pciDeviceName = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// maxPCIeSwitches bounds the number of switches above a GPU.
const maxPCIeSwitches = 8

// readPCIeHierarchy reads the PCIe root complex and the switches above the GPU. Only ResourceSlices require them, so
// they stay empty if sysfs lacks them, as in a sandbox that hides the PCI bus.
func (s session) readPCIeHierarchy(g *gpu.GPU) {
	dir, err := s.node.Resolve(path.Join("/sys/bus/pci/devices", g.PCIBusID))
	if err != nil || path.Base(dir) != g.PCIBusID {
		return
	}
	g.PCIeRoot, g.PCIeSwitches = parsePCIeHierarchy(dir)
}

// parsePCIeHierarchy parses the resolved sysfs directory of a GPU:
// "/sys/devices/pci0000:17/<root port>/<upstream port>/<downstream port>/<GPU>". It returns the root complex, and the
// upstream ports of the switches, nearest to the GPU first.
func parsePCIeHierarchy(dir string) (root string, switches []string) {
	elements, found := strings.CutPrefix(dir, "/sys/devices/")
	if !found {
		return "", nil
	}
	names := strings.Split(elements, "/")
	if !pcieRootName.MatchString(names[0]) {
		return "", nil
	}
	// The bridges between the root port and the GPU are an upstream and a downstream port for each switch.
	for i := 2; i+2 < len(names) && len(switches) < maxPCIeSwitches; i += 2 {
		if pciDeviceName.MatchString(names[i]) {
			switches = append(switches, names[i])
		}
	}
	slices.Reverse(switches)
	return names[0], switches
}
