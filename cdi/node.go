package cdi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// control are the nodes that containers with any GPU need.
var control = []struct {
	path       string
	minor      int64
	registered []string // one of these names is in /proc/devices, see readMajors
	features   Features // that use it; nil: all
	required   Features // that cannot do without it
}{
	{"/dev/nvidiactl", minorControl, []string{"nvidia", "nvidiactl"}, nil, nil},
	{"/dev/nvidia-uvm", minorUVM, []string{"nvidia-uvm"}, onUVM, onUVM},
	{"/dev/nvidia-uvm-tools", minorUVMTools, []string{"nvidia-uvm"}, onUVM, nil},
	// Rendering can do without; only machines with a screen load the module.
	{"/dev/nvidia-modeset", minorModeset, []string{"nvidia-modeset"},
		Features{Graphics, Display}, Features{Display}},
}

// onUVM are the features that work in a CUDA context.
var onUVM = Features{Compute, Video}

// controlNodes are the nodes that every container with a GPU needs for some
// features. The error names each kernel module that is not loaded.
func controlNodes(node host.Root, majors majors, features Features) ([]Node, error) {
	var nodes []Node
	var errs []error
	for _, c := range control {
		if c.features != nil && !features.Any(c.features...) {
			continue
		}
		major, err := majors.of(node, c.path, c.registered...)
		switch {
		case err == nil:
			nodes = append(nodes, Node{c.path, major, c.minor})
		case c.features == nil || features.Any(c.required...):
			errs = append(errs, err)
		}
	}
	return nodes, errors.Join(errs...)
}

// gpuNode is the node of the GPU with that minor number. What the host has under
// that name must be that device, or programs on the host and in containers
// would mean different GPUs by it; and whoever makes the spec must be allowed
// to use it, as the containers are to be.
func gpuNode(node host.Root, majors majors, minor int) (Node, error) {
	name := path.Join("/dev", "nvidia"+strconv.Itoa(minor))
	major, err := majors.of(node, name, "nvidia")
	if err != nil {
		return Node{}, err
	}
	want := Node{Path: name, Major: major, Minor: int64(minor)}
	got, err := statNode(node, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return want, nil
	case err != nil:
		return Node{}, fmt.Errorf("%w: look at the node, or remove it and run nvidia-modprobe -c %d", err, minor)
	case got != want:
		return Node{}, fmt.Errorf("%s is device %d:%d, the driver says %d:%d: remove the node and run nvidia-modprobe -c %d",
			name, got.Major, got.Minor, want.Major, want.Minor, minor)
	}
	return want, usable(node, name)
}

// usable says whether this process may read and write the file at path.
func usable(node host.Root, path string) error {
	inside, err := node.Resolve(path)
	if err != nil {
		return err
	}
	err = unix.Faccessat(unix.AT_FDCWD, node.LocalPath(inside), unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	if err != nil {
		return fmt.Errorf("%s may not be used by user %d: %w (give it mode 0666, or run this as a user who may)", path, os.Geteuid(), err)
	}
	return nil
}

// majors are the character devices that the kernel's drivers have registered,
// by name, as in /proc/devices.
type majors map[string]int64

// modesetModule exists while the kernel module nvidia-modeset is loaded.
const modesetModule = "/sys/module/nvidia_modeset"

// readMajors reads /proc/devices. Since version 545 the driver registers the names of its nodes
// there: nvidia, nvidiactl, nvidia-modeset. Before that, the nvidia module registered
// nvidia-frontend for all of them, and passed on what is opened to the module that has the minor
// number: the node of modeset opens only while its own module is loaded, which /proc/devices does
// not show. The node itself shows nothing either: it stays when the module is unloaded.
func readMajors(node host.Root) (majors, error) {
	data, err := node.ReadFile("/proc/devices")
	if err != nil {
		return nil, fmt.Errorf("reading the registered devices: %w", err)
	}
	found := parseMajors(data)
	if frontend, ok := found["nvidia-frontend"]; ok {
		found["nvidia"] = frontend
		if _, err := node.Stat(modesetModule); err == nil {
			found["nvidia-modeset"] = frontend
		}
	}
	return found, nil
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

// NotLoadedError says that a kernel module is not loaded.
type NotLoadedError struct{ Module string }

func (e *NotLoadedError) Error() string {
	return fmt.Sprintf("kernel module %[1]s is not loaded; run modprobe %[1]s", e.Module)
}

// of returns the major number of the driver that registered one of names, or,
// where /proc/devices is not the host's own, as in some sandboxes, that of
// the host's node at path. Elsewhere a node says nothing: it stays behind when
// its module is unloaded.
func (m majors) of(node host.Root, path string, names ...string) (int64, error) {
	for _, name := range names {
		if major, ok := m[name]; ok {
			return major, nil
		}
	}
	if n, err := statNode(node, path); err == nil && !m.ofNVIDIA() {
		return n.Major, nil
	}
	return 0, &NotLoadedError{Module: names[0]}
}

// DriverLoaded says whether the node's kernel has loaded NVIDIA's driver.
func DriverLoaded(node host.Root) bool {
	majors, err := readMajors(node)
	return err == nil && majors.ofNVIDIA()
}

// ofNVIDIA says whether any of NVIDIA's drivers is registered.
func (m majors) ofNVIDIA() bool {
	for name := range m {
		if strings.HasPrefix(name, "nvidia") {
			return true
		}
	}
	return false
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
