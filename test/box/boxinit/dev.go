package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// nodes are the standard character devices, kmsg for the kubelet, and fuse.
var nodes = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9},
	{"kmsg", 1, 11}, {"tty", 5, 0}, {"console", 5, 1}, {"fuse", 10, 229},
}

var links = map[string]string{
	"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
	"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
}

// mountDev mounts and fills /dev.
func mountDev(s *spec.Spec, root string) error {
	dev := filepath.Join(root, "dev")
	if err := mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := unix.Mknod(filepath.Join(dev, n.name), unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor))); err != nil {
			return fmt.Errorf("creating device node %s: %w", n.name, err)
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("linking /dev/%s: %w", name, err)
		}
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			return fmt.Errorf("creating /dev/%s: %w", name, err)
		}
	}
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	if err := errors.Join(
		mount("devpts", filepath.Join(dev, "pts"), "devpts", flags, "newinstance,ptmxmode=0666,mode=620"),
		mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"),
		mount("mqueue", filepath.Join(dev, "mqueue"), "mqueue", flags|unix.MS_NODEV, ""),
	); err != nil {
		return err
	}
	if s.Simulated {
		return nil
	}
	return copyNVIDIANodes(dev)
}

// copyNVIDIANodes copies the device nodes of the machine's NVIDIA driver.
func copyNVIDIANodes(dev string) error {
	found, err := filepath.Glob("/dev/nvidia*")
	if err != nil {
		return err
	}
	for _, path := range found {
		err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return copyNode(path, filepath.Join(dev, path[len("/dev/"):]), d)
		})
		if err != nil {
			return fmt.Errorf("copying the device nodes at %s: %w", path, err)
		}
	}
	return nil
}

func copyNode(from, to string, d fs.DirEntry) error {
	if d.IsDir() {
		return os.Mkdir(to, 0o755)
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeCharDevice == 0 {
		return nil
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: no device number", from)
	}
	return unix.Mknod(to, stat.Mode, int(stat.Rdev))
}
