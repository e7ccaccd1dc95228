package nvml

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Mounts are directories of the node to mount, with all mounts below them, where NVML expects them: Devices at /dev and
// Cgroups at host.CgroupDir. An empty path is not mounted.
type Mounts struct{ Devices, Cgroups string }

// Exec replaces this process with a program in a new mount namespace with these mounts, so other processes are not
// affected. It returns only if it fails.
//
// The driver worker executes itself, because the other threads of a running Go program would stay in the old namespace.
func (m Mounts) Exec(program string, args []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating a mount namespace for %s: %w; run as root with CAP_SYS_ADMIN", strings.TrimSpace(m.Devices+" "+m.Cgroups), err)
	}
	// Later mounts on the node, such as a new driver container's, still propagate to this namespace, but mounts here do
	// not propagate to the node.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("isolating the mount namespace: %w", err)
	}
	for _, mount := range []struct{ dir, target string }{{m.Devices, "/dev"}, {m.Cgroups, host.CgroupDir}} {
		if mount.dir == "" {
			continue
		}
		if err := unix.Mount(mount.dir, mount.target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", mount.dir, mount.target, err)
		}
	}
	return fmt.Errorf("executing %s: %w", program, unix.Exec(program, args, os.Environ()))
}
