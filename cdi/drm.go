package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// drmNodes returns the nodes below /dev/dri of the GPU at a PCI address, each by its name and by its path in
// /dev/dri/by-path. There are none unless nvidia-drm is loaded, which rendering does not require.
func drmNodes(root host.Root, busID string) ([]DeviceNode, error) {
	dir := path.Join("/sys/bus/pci/devices", busID, "drm")
	entries, err := root.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the DRM nodes of %s: %w", busID, err)
	}
	var nodes []DeviceNode
	for _, entry := range entries {
		kind := strings.TrimRight(entry.Name(), "0123456789")
		if kind != "card" && kind != "renderD" {
			continue
		}
		n, err := drmNode(root, path.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		byPath := n
		byPath.Path = fmt.Sprintf("/dev/dri/by-path/pci-%s-%s", busID, strings.TrimSuffix(kind, "D"))
		nodes = append(nodes, n, byPath)
	}
	return nodes, nil
}

// drmNode returns the DRM node that a sysfs directory describes.
func drmNode(root host.Root, dir string) (DeviceNode, error) {
	data, err := root.ReadFile(path.Join(dir, "dev"))
	if err != nil {
		return DeviceNode{}, fmt.Errorf("reading the device numbers of a DRM node: %w", err)
	}
	return parseDeviceNumbers(path.Join("/dev/dri", path.Base(dir)), string(data))
}

// parseDeviceNumbers parses device numbers as in sysfs, such as "226:4\n".
func parseDeviceNumbers(name, text string) (DeviceNode, error) {
	n := DeviceNode{Path: name}
	if _, err := fmt.Sscanf(text, "%d:%d", &n.Major, &n.Minor); err != nil || n.Major <= 0 || n.Minor < 0 {
		return DeviceNode{}, fmt.Errorf("parsing the device numbers of %s: invalid %q", name, text)
	}
	return n, nil
}
