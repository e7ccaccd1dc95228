package cdi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// migMinors lists the minor number of each MIG capability.
const migMinors = "/proc/driver/nvidia-caps/mig-minors"

// capabilities are the minor numbers of MIG capabilities by name. "gpu0/gi1/access" grants access to GPU instance 1 of
// the GPU with minor number 0, "gpu0/gi1/ci0/access" to compute instance 0 in it.
type capabilities map[string]int64

func readCapabilities(root host.Root) (capabilities, error) {
	data, err := root.ReadFile(migMinors)
	if err != nil {
		return nil, fmt.Errorf("reading the MIG capabilities: %w", err)
	}
	return parseCapabilities(data), nil
}

func parseCapabilities(data []byte) capabilities {
	found := capabilities{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, number, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if minor, err := strconv.ParseInt(number, 10, 32); err == nil && minor >= 0 {
			found[name] = minor
		}
	}
	return found
}

// migNodes returns the device nodes of a MIG device: the node of its GPU, and the nodes of two capabilities, for its
// GPU instance and for its compute instance. Containers require all three.
func migNodes(root host.Root, majors majors, caps capabilities, g gpu.GPU, m gpu.MIGDevice) ([]DeviceNode, error) {
	parent, err := gpuNode(root, majors, g.Minor)
	if err != nil {
		return nil, err
	}
	nodes := []DeviceNode{parent}
	instance := fmt.Sprintf("gpu%d/gi%d", g.Minor, m.GPUInstance)
	for _, name := range []string{instance + "/access", fmt.Sprintf("%s/ci%d/access", instance, m.ComputeInstance)} {
		n, err := capNode(root, majors, caps, name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// capNode returns the device node of a MIG capability.
func capNode(root host.Root, majors majors, caps capabilities, name string) (DeviceNode, error) {
	minor, known := caps[name]
	if !known {
		return DeviceNode{}, fmt.Errorf("%s has no capability %s for this MIG device; destroy and recreate the MIG device, or reload the nvidia module",
			migMinors, name)
	}
	file := path.Join("/dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor))
	major, err := majors.lookup(root, file, "nvidia-caps")
	if err != nil {
		return DeviceNode{}, errors.New("/proc/devices has no nvidia-caps; reload the nvidia module")
	}
	want := DeviceNode{Path: file, Major: major, Minor: minor}
	if got, err := statNode(root, file); err == nil && got != want {
		return DeviceNode{}, fmt.Errorf("%s is device %d:%d, but the driver uses %d:%d; remove the node and run nvidia-modprobe -f /proc/driver/nvidia/capabilities/%s",
			file, got.Major, got.Minor, want.Major, want.Minor, strings.Replace(name, "/", "/mig/", 1))
	}
	return want, nil
}

// monitorCapability permits NVML queries of all MIG devices of a node.
const monitorCapability = "monitor"

// monitorNodes returns the additional device nodes for monitoring GPUs in MIG mode: the nodes of the GPUs, and of
// monitorCapability. It skips nodes with an error, which must not affect containers that hold the GPUs.
func monitorNodes(root host.Root, majors majors, caps capabilities, inv *gpu.Inventory) (nodes []DeviceNode) {
	for _, g := range inv.GPUs {
		if g.MIG != gpu.MIGEnabled || !located(g) || replaced(g, inv) {
			continue
		}
		if n, err := gpuNode(root, majors, g.Minor); err == nil {
			nodes = append(nodes, n)
		}
	}
	if n, err := capNode(root, majors, caps, monitorCapability); err == nil {
		nodes = append(nodes, n)
	}
	return nodes
}
