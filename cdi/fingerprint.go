package cdi

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"tags.cncf.io/container-device-interface/specs-go"
)

// kernelFiles change with the loaded kernel modules of the driver.
var kernelFiles = []string{"/proc/devices", "/proc/driver/nvidia/version"}

// drmDir contains the DRM nodes of the GPUs.
const drmDir = "/dev/dri"

// volatileDirs contain no driver files that could be added, and change often.
var volatileDirs = []string{"/", "/etc", "/run", "/tmp", "/var/run"}

// dependencies returns the host paths of the mounts and hooks, of the device nodes of each device, and of directories in
// which optional files may appear, sorted, without duplicates.
func dependencies(spec *specs.Spec) []string {
	paths := append(sources(spec), drmDir)
	for _, m := range spec.ContainerEdits.Mounts {
		if dir := path.Dir(m.HostPath); !slices.Contains(volatileDirs, dir) {
			paths = append(paths, dir)
		}
	}
	for _, d := range spec.Devices {
		for _, n := range d.ContainerEdits.DeviceNodes {
			paths = append(paths, n.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// fingerprint returns a text that changes with the host files that the spec depends on.
func (f *File) fingerprint() string {
	var state strings.Builder
	for _, name := range f.dependencies {
		info, err := f.root.Stat(name)
		if err != nil {
			fmt.Fprintln(&state, name, err)
			continue
		}
		fmt.Fprintln(&state, name, identity(info))
	}
	if _, err := f.root.Stat(modesetModule); err == nil {
		fmt.Fprintln(&state, modesetModule)
	}
	// Files in /proc have no size, and stat returns the current time as their mtime.
	for _, name := range kernelFiles {
		text, err := f.root.ReadFile(name)
		fmt.Fprintln(&state, name, string(text), err)
	}
	return state.String()
}

// fileIdentity changes when a file is replaced, or its content, owner or mode changes.
type fileIdentity struct {
	dev, ino, rdev uint64
	mode, uid, gid uint32
	size, ctime    int64 // in bytes; in nanoseconds
}

func identity(info fs.FileInfo) fileIdentity {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileIdentity{}
	}
	id := fileIdentity{dev: stat.Dev, ino: stat.Ino, mode: stat.Mode, uid: stat.Uid, gid: stat.Gid}
	if info.Mode()&fs.ModeDevice != 0 {
		id.rdev = stat.Rdev // no ctime: writing to a device changes it
	} else {
		id.size, id.ctime = stat.Size, stat.Ctim.Nano() // no mtime: programs can restore it
	}
	return id
}
