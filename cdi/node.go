package cdi

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Node is a character device of the NVIDIA driver. Its numbers go into the
// spec, so that the runtime can make the node even where the host has none:
// on many hosts /dev/nvidia-uvm appears only once a program has used it.
type Node struct {
	Path         string
	Major, Minor int64
}

// The minor numbers that the driver has fixed for its control nodes. A GPU's
// own is asked of NVML.
const (
	minorControl  = 255
	minorModeset  = 254
	minorUVM      = 0
	minorUVMTools = 1
)

// controlNodes are the nodes that every container with a GPU needs. The error
// is for a kernel module that is not loaded.
func controlNodes(node host.Root, majors majors) ([]Node, error) {
	nvidia, err := majors.of(node, "/dev/nvidiactl", "nvidia", "nvidia-frontend", "nvidiactl")
	if err != nil {
		return nil, err
	}
	uvm, err := majors.of(node, "/dev/nvidia-uvm", "nvidia-uvm")
	if err != nil {
		return nil, err
	}
	nodes := []Node{
		{"/dev/nvidia-uvm", uvm, minorUVM},
		{"/dev/nvidia-uvm-tools", uvm, minorUVMTools},
		{"/dev/nvidiactl", nvidia, minorControl},
	}
	// Only machines with a display stack load nvidia-modeset.
	if modeset, err := majors.of(node, "/dev/nvidia-modeset", "nvidia-modeset"); err == nil {
		nodes = append(nodes, Node{"/dev/nvidia-modeset", modeset, minorModeset})
	}
	return nodes, nil
}

// gpuNode is the node of the GPU with that minor number. A node that the host
// has under that name must be that device, or programs on the host and in
// containers would mean different GPUs by it.
func gpuNode(node host.Root, majors majors, minor int) (Node, error) {
	name := path.Join("/dev", "nvidia"+strconv.Itoa(minor))
	major, err := majors.of(node, name, "nvidia", "nvidia-frontend")
	if err != nil {
		return Node{}, err
	}
	want := Node{Path: name, Major: major, Minor: int64(minor)}
	got, err := statNode(node, name)
	if err == nil && got != want {
		return Node{}, fmt.Errorf("%s is device %d:%d, the driver says %d:%d: remove the node and run nvidia-modprobe -c %d",
			name, got.Major, got.Minor, want.Major, want.Minor, minor)
	}
	return want, nil
}

// majors are the character devices that the kernel's drivers have registered,
// by name, as in /proc/devices.
type majors map[string]int64

func readMajors(node host.Root) (majors, error) {
	data, err := node.ReadFile("/proc/devices")
	if err != nil {
		return nil, fmt.Errorf("reading the registered devices: %w", err)
	}
	return parseMajors(data), nil
}

func parseMajors(data []byte) majors {
	found := majors{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Block devices") {
			break
		}
		number, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if major, err := strconv.ParseInt(number, 10, 32); err == nil && major > 0 {
			found[name] = major
		}
	}
	return found
}

// of returns the major number of the driver that registered one of names, or,
// where /proc/devices is not the host's own, as in some sandboxes, that of
// the host's node at path.
func (m majors) of(node host.Root, path string, names ...string) (int64, error) {
	for _, name := range names {
		if major, ok := m[name]; ok {
			return major, nil
		}
	}
	if n, err := statNode(node, path); err == nil {
		return n.Major, nil
	}
	return 0, fmt.Errorf("/proc/devices has no %s and there is no %s: the kernel module is not loaded; run modprobe %s",
		names[0], path, names[0])
}

// statNode reads the numbers of the character device at path.
func statNode(node host.Root, path string) (Node, error) {
	info, err := node.Stat(path)
	if err != nil {
		return Node{}, err
	}
	if info.Mode()&fs.ModeCharDevice == 0 {
		return Node{}, fmt.Errorf("%s is not a character device", path)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Node{}, fmt.Errorf("reading the numbers of %s: no stat data", path)
	}
	return Node{Path: path, Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev))}, nil
}

// inode tells a file from another that has taken its name.
func inode(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}
