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

// migMinors is where the driver tells which minor number each capability has.
const migMinors = "/proc/driver/nvidia-caps/mig-minors"

// capabilities are the minor numbers of the MIG capabilities, by the driver's
// names for them: "gpu0/gi1/access" lets a process use GPU instance 1 of the
// GPU with minor number 0, "gpu0/gi1/ci0/access" compute instance 0 in it.
type capabilities map[string]int64

func readCapabilities(node host.Root) (capabilities, error) {
	data, err := node.ReadFile(migMinors)
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

// migNodes are the nodes of a MIG device: its GPU's, and those that let a
// process use the two instances. Without one of them it would see nothing.
func migNodes(node host.Root, majors majors, caps capabilities, g gpu.GPU, m gpu.MIGDevice) ([]Node, error) {
	parent, err := gpuNode(node, majors, g.Minor)
	if err != nil {
		return nil, err
	}
	nodes := []Node{parent}
	instance := fmt.Sprintf("gpu%d/gi%d", g.Minor, m.GPUInstance)
	for _, name := range []string{instance + "/access", fmt.Sprintf("%s/ci%d/access", instance, m.ComputeInstance)} {
		n, err := capNode(node, majors, caps, name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func capNode(node host.Root, majors majors, caps capabilities, name string) (Node, error) {
	minor, known := caps[name]
	if !known {
		return Node{}, fmt.Errorf("%s has no %s: the driver does not let anybody use this MIG device; destroy it and create it again, or reload the nvidia module",
			migMinors, name)
	}
	file := path.Join("/dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor))
	major, err := majors.of(node, file, "nvidia-caps")
	if err != nil {
		return Node{}, errors.New("/proc/devices has no nvidia-caps: the nvidia module is not loaded whole; reload it")
	}
	want := Node{Path: file, Major: major, Minor: minor}
	if got, err := statNode(node, file); err == nil && got != want {
		return Node{}, fmt.Errorf("%s is device %d:%d, the driver says %d:%d: remove the node and run nvidia-modprobe -f /proc/driver/nvidia/capabilities/%s",
			file, got.Major, got.Minor, want.Major, want.Minor, strings.Replace(name, "/", "/mig/", 1))
	}
	return want, nil
}
