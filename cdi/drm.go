package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// drmNodes are the nodes below /dev/dri of the GPU at that PCI address, each
// under its own name and under the one that tells the GPU by its place. A GPU
// has none while nvidia-drm is not loaded, and can render all the same.
func drmNodes(node host.Root, busID string) ([]Node, error) {
	dir := path.Join("/sys/bus/pci/devices", busID, "drm")
	entries, err := node.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the DRM nodes of %s: %w", busID, err)
	}
	var nodes []Node
	for _, entry := range entries {
		kind := strings.TrimRight(entry.Name(), "0123456789")
		if kind != "card" && kind != "renderD" {
			continue
		}
		n, err := drmNode(node, path.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		byPath := n
		byPath.Path = fmt.Sprintf("/dev/dri/by-path/pci-%s-%s", busID, strings.ToLower(strings.TrimSuffix(kind, "D")))
		nodes = append(nodes, n, byPath)
	}
	return nodes, nil
}

// drmNode reads a node's numbers from its directory in sysfs.
func drmNode(node host.Root, dir string) (Node, error) {
	data, err := node.ReadFile(path.Join(dir, "dev"))
	if err != nil {
		return Node{}, fmt.Errorf("reading the numbers of a DRM node: %w", err)
	}
	return parseNumbers(path.Join("/dev/dri", path.Base(dir)), string(data))
}

// parseNumbers reads "226:4\n", as sysfs writes a device's numbers.
func parseNumbers(name, text string) (Node, error) {
	n := Node{Path: name}
	if _, err := fmt.Sscanf(text, "%d:%d", &n.Major, &n.Minor); err != nil || n.Major <= 0 || n.Minor < 0 {
		return Node{}, fmt.Errorf("reading the numbers of %s: sysfs says %q", name, text)
	}
	return n, nil
}
