package nvml

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ExecWithDevices replaces this process by a program for which dir is /dev: NVML opens device nodes there only. The process
// gets a mount namespace of its own, so other processes are not affected. It returns only if that fails.
//
// The driver worker executes itself, because the other threads of a running Go program would stay in the old namespace.
func ExecWithDevices(dir, program string, args []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating a mount namespace for the device nodes in %s: %w; run as root with CAP_SYS_ADMIN", dir, err)
	}
	// Later mounts on the node, such as that of another driver container, still propagate here, but none from here to
	// the node.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("isolating the mount namespace: %w", err)
	}
	if err := unix.Mount(dir, "/dev", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting the device nodes in %s: %w", dir, err)
	}
	return fmt.Errorf("executing %s: %w", program, unix.Exec(program, args, os.Environ()))
}
