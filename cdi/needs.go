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
	if _, err := f.node.Stat(modesetModule); err == nil {
		fmt.Fprintln(&seen, modesetModule)
	}
	// They have no size, and their time is that of the look at them.
	for _, path := range kernelFiles {
		text, err := f.node.ReadFile(path)
		fmt.Fprintln(&seen, path, string(text), err)
	}
	return seen.String()
}

// fileIdentity distinguishes a file from another one that has taken its name, and from what it was
// before.
type fileIdentity struct {
	dev, ino, rdev uint64
	mode, uid      uint32
	size, mtime    int64 // in bytes; in nanoseconds
}

func identity(info fs.FileInfo) fileIdentity {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileIdentity{}
	}
	// Using a device changes its times, which means nothing.
	if info.Mode()&fs.ModeDevice != 0 {
		return fileIdentity{ino: stat.Ino, rdev: stat.Rdev, mode: stat.Mode}
	}
	return fileIdentity{dev: stat.Dev, ino: stat.Ino, mode: stat.Mode, uid: stat.Uid, size: stat.Size, mtime: stat.Mtim.Nano()}
}
