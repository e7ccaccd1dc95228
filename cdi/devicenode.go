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

// DeviceNode is a character device. The spec contains its device numbers, so that runtimes can create the node even if
// the host lacks it: on many hosts /dev/nvidia-uvm exists only after its first use.
type DeviceNode struct {
	Path         string
	Major, Minor int64
}

// Fixed minor numbers of the driver's control nodes. NVML reports the minor numbers of GPUs.
const (
	minorControl  = 255
	minorModeset  = 254
	minorUVM      = 0
	minorUVMTools = 1
)

// control are the driver's control nodes, which are not specific to a GPU.
var control = []struct {
	path       string
	minor      int64
	registered []string // alternative names in /proc/devices, see readMajors
	features   Features // that use the node; nil: all
	required   Features // that fail without it; all if features is nil
}{
	{"/dev/nvidiactl", minorControl, []string{"nvidia", "nvidiactl"}, nil, nil},
	{"/dev/nvidia-uvm", minorUVM, []string{"nvidia-uvm"}, cudaFeatures, cudaFeatures},
	{"/dev/nvidia-uvm-tools", minorUVMTools, []string{"nvidia-uvm"}, cudaFeatures, nil},
	// Rendering does not require nvidia-modeset, and only machines with a screen load it.
	{"/dev/nvidia-modeset", minorModeset, []string{"nvidia-modeset"},
		Features{Graphics, Display}, Features{Display}},
}

// cudaFeatures run in a CUDA context, which requires nvidia-uvm.
var cudaFeatures = Features{Compute, Video}

// controlNodes returns the control nodes for features. The error contains a *NotLoadedError for each missing kernel
// module.
func controlNodes(root host.Root, majors majors, features Features) ([]DeviceNode, error) {
	var nodes []DeviceNode
	var errs []error
	for _, c := range control {
		if c.features != nil && !features.Any(c.features...) {
			continue
		}
		major, err := majors.lookup(root, c.path, c.registered...)
		switch {
		case err == nil:
			nodes = append(nodes, DeviceNode{c.path, major, c.minor})
		case c.features == nil || features.Any(c.required...):
			errs = append(errs, err)
		}
	}
	return nodes, errors.Join(errs...)
}

// gpuNode returns the device node of the GPU with that minor number. If the host has a node at that path, it must be
// the same device; otherwise the path would identify different GPUs on the host and in containers. It must also be
// accessible to this process, because containers get the same permissions.
func gpuNode(root host.Root, majors majors, minor int) (DeviceNode, error) {
	name := path.Join("/dev", "nvidia"+strconv.Itoa(minor))
	major, err := majors.lookup(root, name, "nvidia")
	if err != nil {
		return DeviceNode{}, err
	}
	want := DeviceNode{Path: name, Major: major, Minor: int64(minor)}
	got, err := statNode(root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return want, nil
	case err != nil:
		return DeviceNode{}, fmt.Errorf("%w; remove the node and run nvidia-modprobe -c %d", err, minor)
	case got != want:
		return DeviceNode{}, fmt.Errorf("%s is device %d:%d, but the driver uses %d:%d; remove the node and run nvidia-modprobe -c %d",
			name, got.Major, got.Minor, want.Major, want.Minor, minor)
	}
	return want, checkAccess(root, name)
}

// checkAccess returns an error unless this process may read and write the device node at path.
func checkAccess(root host.Root, path string) error {
	inside, err := root.Resolve(path)
	if err != nil {
		return err
	}
	err = unix.Faccessat(unix.AT_FDCWD, root.LocalPath(inside), unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	if err != nil {
		return fmt.Errorf("accessing %s as user %d: %w; set its mode to 0666, or run as a user with access", path, os.Geteuid(), err)
	}
	return nil
}

// majors are the major numbers of registered character devices by name, as in /proc/devices.
type majors map[string]int64

// modesetModule exists while the kernel module nvidia-modeset is loaded.
const modesetModule = "/sys/module/nvidia_modeset"

// readMajors reads /proc/devices. Since version 545 the driver registers nvidia, nvidiactl and nvidia-modeset there.
// Before that, the nvidia module registered nvidia-frontend for all of them and dispatched by minor number. With such a
// driver, neither /proc/devices nor the device node shows whether nvidia-modeset is loaded: the node stays when the
// module is unloaded, and then cannot be opened.
func readMajors(root host.Root) (majors, error) {
	data, err := root.ReadFile("/proc/devices")
	if err != nil {
		return nil, fmt.Errorf("reading the registered character devices: %w", err)
	}
	found := parseMajors(data)
	if frontend, ok := found["nvidia-frontend"]; ok {
		found["nvidia"] = frontend
		if _, err := root.Stat(modesetModule); err == nil {
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

// NotLoadedError reports that a kernel module is not loaded.
type NotLoadedError struct{ Module string }

func (e *NotLoadedError) Error() string {
	return fmt.Sprintf("kernel module %[1]s is not loaded; run modprobe %[1]s", e.Module)
}

// lookup returns the major number registered under one of names. If no NVIDIA module is registered, as in a sandbox
// whose /proc/devices is not the host's, it returns the major number of the device node at path. Otherwise the node is
// ignored, because it stays when its module is unloaded. The error is a *NotLoadedError.
func (m majors) lookup(root host.Root, path string, names ...string) (int64, error) {
	for _, name := range names {
		if major, ok := m[name]; ok {
			return major, nil
		}
	}
	if n, err := statNode(root, path); err == nil && !m.hasNVIDIA() {
		return n.Major, nil
	}
	return 0, &NotLoadedError{Module: names[0]}
}

// DriverLoaded reports whether a kernel module of the NVIDIA driver is loaded.
func DriverLoaded(root host.Root) bool {
	majors, err := readMajors(root)
	return err == nil && majors.hasNVIDIA()
}

// hasNVIDIA reports whether a kernel module of the NVIDIA driver has registered a device.
func (m majors) hasNVIDIA() bool {
	for name := range m {
		if strings.HasPrefix(name, "nvidia") {
			return true
		}
	}
	return false
}

var errNotDevice = errors.New("not a character device")

// statNode returns the character device at path. The error wraps errNotDevice if another file is there.
func statNode(root host.Root, path string) (DeviceNode, error) {
	info, err := root.Stat(path)
	if err != nil {
		return DeviceNode{}, err
	}
	if info.Mode()&fs.ModeCharDevice == 0 {
		return DeviceNode{}, fmt.Errorf("%s is %w", path, errNotDevice)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return DeviceNode{}, fmt.Errorf("reading the device numbers of %s: no stat data", path)
	}
	return DeviceNode{Path: path, Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev))}, nil
}
