package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// overlaid are the directories of the machine that are visible in the box, each through an overlay
// that receives the box's writes. The box has its own /var, /run, /dev and other directories.
var overlaid = []string{"usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// hidden are configuration directories of the machine's container tools, removed in the box.
var hidden = []string{"/etc/cni", "/etc/containerd", "/etc/crio", "/etc/cdi", "/etc/kubernetes", "/etc/nerdctl"}

// skeleton are the directories of the root file system.
var skeleton = []string{"dev", "etc", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var", "mnt"}

var varSkeleton = []string{"cache", "lib", "log", "tmp"}

// buildRoot builds the box's root file system in the state directory and pivots to it.
func buildRoot(s *spec.Spec) error {
	unix.Umask(0)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the box's mounts private: %w", err)
	}
	root := filepath.Join(s.Dir, "root")
	steps := []func(*spec.Spec, string) error{bindRoot, mountOverlays, mountVar, mountTmpfs, mountDev, mountKernelFS, mountCgroups, mountBinds}
	if s.Simulated {
		steps = append(steps, mountSimulated)
	}
	for _, step := range steps {
		if err := step(s, root); err != nil {
			return err
		}
	}
	if err := pivotRoot(root); err != nil {
		return err
	}
	for _, dir := range hidden {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("hiding the machine's %s: %w", dir, err)
		}
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost %s\n", s.Hostname)
	if err := os.WriteFile("/etc/hosts", []byte(hosts), 0o644); err != nil {
		return fmt.Errorf("writing the box's /etc/hosts: %w", err)
	}
	// Kubelet and runtimes require a shared root for mount propagation.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making the box's mounts shared: %w", err)
	}
	return nil
}

func bindRoot(_ *spec.Spec, root string) error {
	for _, dir := range skeleton {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("creating the box's root: %w", err)
		}
	}
	return mount(root, root, "", unix.MS_BIND, "")
}

// mountOverlays mounts an overlay on each of the overlaid directories, and copies symlinks, such as
// /bin on a machine with merged /usr.
func mountOverlays(s *spec.Spec, root string) error {
	for _, name := range overlaid {
		from, to := filepath.Join("/", name), filepath.Join(root, name)
		info, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("inspecting the machine's %s: %w", from, err)
		}
		if info.Mode().Type() == fs.ModeSymlink {
			if err := copyLink(from, to); err != nil {
				return err
			}
			continue
		}
		upper, work := filepath.Join(s.Dir, "upper", name), filepath.Join(s.Dir, "work", name)
		for _, dir := range []string{upper, work, to} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("creating a directory for an overlay: %w", err)
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", from, upper, work)
		if err := mount("overlay", to, "overlay", 0, options); err != nil {
			return fmt.Errorf("%w; move the state directory to a file system that supports overlay upper layers", err)
		}
	}
	return nil
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return fmt.Errorf("reading the link %s: %w", from, err)
	}
	if err := os.Symlink(target, to); err != nil {
		return fmt.Errorf("copying the link %s: %w", from, err)
	}
	return nil
}

// mountVar mounts a /var on the file system of the state directory, because container storage
// cannot be on an overlay.
func mountVar(s *spec.Spec, root string) error {
	dir := filepath.Join(s.Dir, "var")
	for _, name := range varSkeleton {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return fmt.Errorf("creating the box's /var: %w", err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(dir, "run")); err != nil {
		return fmt.Errorf("creating the box's /var/run: %w", err)
	}
	return mount(dir, filepath.Join(root, "var"), "", unix.MS_BIND, "")
}

func mountTmpfs(_ *spec.Spec, root string) error {
	return errors.Join(
		mount("tmpfs", filepath.Join(root, "run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
		mount("tmpfs", filepath.Join(root, "tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"),
	)
}

// mountKernelFS mounts procfs and sysfs of the box's namespaces.
func mountKernelFS(_ *spec.Spec, root string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return errors.Join(
		mount("proc", filepath.Join(root, "proc"), "proc", flags, ""),
		mount("sysfs", filepath.Join(root, "sys"), "sysfs", flags, ""),
	)
}

func mountBinds(s *spec.Spec, root string) error {
	for from, to := range s.Binds {
		at := filepath.Join(root, to)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("creating mount point %s: %w", to, err)
		}
		if err := mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	return nil
}

// mountSimulated mounts writable files for a simulated driver in /proc and /sys.
func mountSimulated(s *spec.Spec, root string) error {
	devices, err := os.ReadFile("/proc/devices")
	if err != nil {
		return fmt.Errorf("reading the machine's device numbers: %w", err)
	}
	file := filepath.Join(s.Dir, "devices")
	if err := os.WriteFile(file, devices, 0o644); err != nil {
		return fmt.Errorf("writing the box's device numbers: %w", err)
	}
	return errors.Join(
		mount(file, filepath.Join(root, "proc/devices"), "", unix.MS_BIND, ""),
		mount("tmpfs", filepath.Join(root, "proc/driver"), "tmpfs", 0, "mode=755"),
		mount("tmpfs", filepath.Join(root, "sys/bus/pci/devices"), "tmpfs", 0, "mode=755"),
	)
}

// pivotRoot makes root the root of the mount namespace and unmounts the machine's.
func pivotRoot(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("entering the box's root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivoting to the box's root: %w", err)
	}
	// The old root is now mounted on top of the new one.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the machine's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("entering the box's root: %w", err)
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", source, target, err)
	}
	return nil
}
