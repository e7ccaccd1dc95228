package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// makeCgroups creates a cgroup for the box below the root of each hierarchy, because only the
// root of cgroup v2 can have processes and controllers for its children.
//
// On a machine with v1 controllers it ignores the v2 hierarchy, because not every runtime
// supports hybrid mode.
func makeCgroups(id string) ([]spec.Cgroup, error) {
	hierarchies, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var made []spec.Cgroup
	for _, h := range hierarchies {
		dir := filepath.Join(h.Path, id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return made, fmt.Errorf("creating the box's cgroup: %w", err)
		}
		made = append(made, spec.Cgroup{Controllers: h.Controllers, Path: dir})
		if err := prepare(h, dir); err != nil {
			return made, fmt.Errorf("preparing the cgroup %s: %w", dir, err)
		}
		if err := os.Mkdir(filepath.Join(dir, spec.Leaf), 0o755); err != nil {
			return made, fmt.Errorf("creating the box's cgroup: %w", err)
		}
	}
	return made, nil
}

// prepare enables controllers for a new cgroup, and initializes its cpuset.
func prepare(h spec.Cgroup, dir string) error {
	if h.Controllers == "" {
		available, err := os.ReadFile(filepath.Join(h.Path, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for c := range strings.FieldsSeq(string(available)) {
			if err := write(filepath.Join(h.Path, "cgroup.subtree_control"), "+"+c); err != nil {
				return fmt.Errorf("enabling controller %q in the root cgroup of the machine: %w", c, err)
			}
		}
		return nil
	}
	if slices.Contains(strings.Split(h.Controllers, ","), "cpuset") {
		// No process can run in an empty v1 cpuset. clone_children copies the cpuset to new children.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			v, err := os.ReadFile(filepath.Join(h.Path, f))
			if err != nil {
				return err
			}
			if err := write(filepath.Join(dir, f), strings.TrimSpace(string(v))); err != nil {
				return err
			}
		}
		return write(filepath.Join(dir, "cgroup.clone_children"), "1")
	}
	return nil
}

// hierarchies returns the mount points of the machine's cgroup hierarchies: v1, or v2 if no v1
// hierarchy has controllers.
func hierarchies() ([]spec.Cgroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("listing cgroup hierarchies: %w", err)
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var v1, v2 []spec.Cgroup
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		at, ok := mounts[parts[1]]
		switch {
		case !ok: // not mounted
		case parts[1] == "":
			v2 = append(v2, spec.Cgroup{Path: at})
		default:
			v1 = append(v1, spec.Cgroup{Controllers: parts[1], Path: at})
		}
	}
	if slices.ContainsFunc(v1, func(c spec.Cgroup) bool { return !strings.Contains(c.Controllers, "=") }) {
		return v1, nil
	}
	if len(v2) == 0 {
		return nil, errors.New("listing cgroup hierarchies: none is mounted; mount cgroup2 at /sys/fs/cgroup")
	}
	return v2, nil
}

// cgroupMounts returns the mount points of hierarchies by their controllers, in the format of
// /proc/self/cgroup.
func cgroupMounts() (map[string]string, error) {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("reading cgroup mounts: %w", err)
	}
	at := map[string]string{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		switch f[2] {
		case "cgroup2":
			at[""] = f[1]
		case "cgroup":
			at[controllers(f[3])] = f[1]
		}
	}
	return at, nil
}

// controllers returns the controllers in the options of a v1 mount.
func controllers(options string) string {
	nonControllers := []string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr",
		"clone_children", "noprefix", "cpuset_v2_mode", "seclabel"}
	var names []string
	for o := range strings.SplitSeq(options, ",") {
		if strings.HasPrefix(o, "release_agent=") || slices.Contains(nonControllers, o) {
			continue
		}
		names = append(names, o)
	}
	return strings.Join(names, ",")
}

// removeCgroups removes the box's cgroups and their children. The kernel may need some time to
// release the processes, which were killed.
func removeCgroups(cgroups []spec.Cgroup) error {
	deadline := time.Now().Add(10 * time.Second)
	var errs []error
	for _, c := range cgroups {
		err := removeTree(c.Path)
		for ; errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline); err = removeTree(c.Path) {
			time.Sleep(20 * time.Millisecond)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("removing the cgroup %s: %w", c.Path, err))
		}
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}

// joinCgroups moves this process to the child sub of each cgroup of the box.
func joinCgroups(cgroups []spec.Cgroup, sub string) error {
	for _, c := range cgroups {
		if err := write(filepath.Join(c.Path, sub, "cgroup.procs"), "0"); err != nil {
			return fmt.Errorf("joining the cgroup %s: %w", c.Path, err)
		}
	}
	return nil
}

func write(name, value string) error {
	return os.WriteFile(name, []byte(value), 0o600)
}
