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

// Directories of the machine that the box sees, each under an overlay, so that what is
// written stays in the box. Everything else is its own: that way nothing that the machine
// keeps in /var, /run or /dev has to be hidden.
var layered = []string{"usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// Configuration of the machine's own container tools, which is not to guide the box's.
var foreign = []string{"/etc/cni", "/etc/containerd", "/etc/crio", "/etc/cdi", "/etc/kubernetes", "/etc/nerdctl"}

// Directories that a root file system has.
var skeleton = []string{"dev", "etc", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var", "mnt"}

var varSkeleton = []string{"cache", "lib", "log", "tmp"}

// buildRoot makes the box's root file system in the state directory and turns into it.
func buildRoot(s *spec.Spec) error {
	unix.Umask(0)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cutting the box's mounts off from the machine's: %w", err)
	}
	root := filepath.Join(s.Dir, "root")
	steps := []func(*spec.Spec, string) error{bindRoot, layer, ownVar, tmpfses, devices, kernel, cgroups, binds}
	if s.Simulated {
		steps = append(steps, writableKernel)
	}
	for _, step := range steps {
		if err := step(s, root); err != nil {
			return err
		}
	}
	if err := turnInto(root); err != nil {
		return err
	}
	for _, dir := range foreign {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("hiding the machine's %s: %w", dir, err)
		}
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost %s\n", s.Hostname)
	if err := os.WriteFile("/etc/hosts", []byte(hosts), 0o644); err != nil {
		return fmt.Errorf("writing the box's /etc/hosts: %w", err)
	}
	// Kubelets and runtimes propagate mounts into containers, as on a machine whose root is shared.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("sharing the box's mounts: %w", err)
	}
	return nil
}

func bindRoot(_ *spec.Spec, root string) error {
	for _, dir := range skeleton {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("making the box's root: %w", err)
		}
	}
	return mount(root, root, "", unix.MS_BIND, "")
}

// layer puts an overlay on each of the machine's own directories; a symbolic link (/bin on a
// machine with a merged /usr) is copied.
func layer(s *spec.Spec, root string) error {
	for _, name := range layered {
		from, to := filepath.Join("/", name), filepath.Join(root, name)
		info, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking at the machine's %s: %w", from, err)
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
				return fmt.Errorf("making a directory for an overlay: %w", err)
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", from, upper, work)
		if err := mount("overlay", to, "overlay", 0, options); err != nil {
			return fmt.Errorf("%w (is the state directory on a file system that overlays can write to?)", err)
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

// ownVar gives the box a /var on the state directory's own file system: container storage
// cannot lie on an overlay.
func ownVar(s *spec.Spec, root string) error {
	dir := filepath.Join(s.Dir, "var")
	for _, name := range varSkeleton {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return fmt.Errorf("making the box's /var: %w", err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(dir, "run")); err != nil {
		return fmt.Errorf("making the box's /var/run: %w", err)
	}
	return mount(dir, filepath.Join(root, "var"), "", unix.MS_BIND, "")
}

func tmpfses(_ *spec.Spec, root string) error {
	return errors.Join(
		mount("tmpfs", filepath.Join(root, "run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
		mount("tmpfs", filepath.Join(root, "tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"),
	)
}

// kernel mounts the kernel's file systems as the box's own namespaces show them.
func kernel(_ *spec.Spec, root string) error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return errors.Join(
		mount("proc", filepath.Join(root, "proc"), "proc", quiet, ""),
		mount("sysfs", filepath.Join(root, "sys"), "sysfs", quiet, ""),
	)
}

func binds(s *spec.Spec, root string) error {
	for from, to := range s.Binds {
		at := filepath.Join(root, to)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("making the mount point %s: %w", to, err)
		}
		if err := mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	return nil
}

// writableKernel puts plain files where the kernel would not let a simulated driver write.
func writableKernel(s *spec.Spec, root string) error {
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

// turnInto makes root the root of the mount namespace and lets go of the machine's.
func turnInto(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("entering the box's root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("turning into the box's root: %w", err)
	}
	// The old root lies on top of the new one now.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("letting go of the machine's root: %w", err)
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
