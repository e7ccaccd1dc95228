package nvml

import (
	"slices"
	"strings"
	"testing"
)

func TestPCIeHierarchy(t *testing.T) {
	for _, tc := range []struct {
		name, dir, root, switches string
	}{
		{"no symlink", "/sys/bus/pci/devices/0000:18:00.0", "", ""},
		{"below a root port", "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00", ""},
		{"virtual machine", "/sys/devices/pci0000:00/0000:00:05.0", "pci0000:00", ""},
		{"one switch", "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:04.0/0000:1a:00.0", "pci0000:17", "0000:18:00.0"},
		{"two switches", "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:04.0/0000:1a:00.0/0000:1b:08.0/0000:1c:00.0", "pci0000:17", "0000:1a:00.0 0000:18:00.0"},
		{"another PCI domain", "/sys/devices/pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00", ""},
		{"another bus", "/sys/devices/platform/pci0000:00/0000:00:05.0", "", ""},
		{"not a switch", "/sys/devices/pci0000:17/0000:17:01.0/a\n/b/0000:1a:00.0", "pci0000:17", ""},
		{"too many", "/sys/devices/pci0000:17/0000:17:01.0" + strings.Repeat("/0000:18:00.0/0000:19:00.0", 50) + "/0000:1a:00.0", "pci0000:17", strings.TrimSpace(strings.Repeat(" 0000:18:00.0", maxPCIeSwitches))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, switches := parsePCIeHierarchy(tc.dir)
			if root != tc.root || !slices.Equal(switches, strings.Fields(tc.switches)) {
				t.Errorf("%q, %q; want %q, %q", root, switches, tc.root, tc.switches)
			}
		})
	}
}
