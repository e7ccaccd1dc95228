package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// mountCgroups mounts the cgroup hierarchies. In the cgroup namespace, the box's cgroup is their
// root.
func mountCgroups(s *spec.Spec, root string) error {
	at := filepath.Join(root, "sys/fs/cgroup")
	if s.Cgroups[0].Controllers == "" {
		return mount("cgroup2", at, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err := mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return err
	}
	for _, c := range s.Cgroups {
		// The mount point has the same name as on the machine, such as cpu,cpuacct or systemd.
		dir := filepath.Join(at, filepath.Base(filepath.Dir(c.Path)))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("creating a mount point for a cgroup hierarchy: %w", err)
		}
		if err := mount("cgroup", dir, "cgroup", 0, v1Options(c.Controllers)); err != nil {
			return err
		}
		if err := linkControllers(dir, c.Controllers); err != nil {
			return err
		}
	}
	return nil
}

// v1Options returns the mount options of a v1 hierarchy.
func v1Options(controllers string) string {
	if strings.HasPrefix(controllers, "name=") {
		return "none," + controllers
	}
	return controllers
}

// linkControllers creates symlinks such as cpu and cpuacct to cpu,cpuacct.
func linkControllers(dir, controllers string) error {
	if !strings.Contains(controllers, ",") {
		return nil
	}
	for name := range strings.SplitSeq(controllers, ",") {
		if err := os.Symlink(filepath.Base(dir), filepath.Join(filepath.Dir(dir), name)); err != nil {
			return fmt.Errorf("linking the cgroup controller %s: %w", name, err)
		}
	}
	return nil
}
