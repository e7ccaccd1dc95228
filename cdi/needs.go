package cdi

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"tags.cncf.io/container-device-interface/specs-go"
)

// kernelFiles are where the kernel tells of the driver that it has loaded.
var kernelFiles = []string{"/proc/devices", "/proc/driver/nvidia/version"}

// needs are the files and nodes of the host that a spec names.
func needs(spec *specs.Spec) []string {
	paths := sources(spec)
	for _, d := range spec.Devices {
		for _, n := range d.ContainerEdits.DeviceNodes {
			paths = append(paths, n.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// fingerprint tells one state of what the spec needs from another.
func (f *File) fingerprint() string {
	var seen strings.Builder
	for _, path := range f.needed {
		info, err := f.node.Stat(path)
		if err != nil {
			fmt.Fprintln(&seen, path, err)
			continue
		}
		fmt.Fprintln(&seen, path, identity(info))
	}
	// They have no size, and their time is that of the look at them.
	for _, path := range kernelFiles {
		text, err := f.node.ReadFile(path)
		fmt.Fprintln(&seen, path, string(text), err)
	}
	return seen.String()
}

// identity tells a file from another that has taken its name, and from what it
// was before.
func identity(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	// To use a device changes its times, and means nothing.
	if info.Mode()&fs.ModeDevice != 0 {
		return fmt.Sprint(stat.Ino, stat.Rdev, stat.Mode)
	}
	return fmt.Sprint(stat.Ino, stat.Size, stat.Mtim.Nano())
}
