package nvml

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// useDevices replaces this process by another run of its program, for which dir is /dev: NVML opens device nodes there only.
// The process gets a mount namespace of its own, so nothing else sees the change. It returns only if that fails.
//
// Another run is required because a program in Go has several threads, and each would stay in the old namespace.
func useDevices(dir string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating a mount namespace for the device nodes in %s: %w; run as root with CAP_SYS_ADMIN", dir, err)
	}
	// Mounts of the node still appear here, such as that of another driver container, and none from here there.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("isolating the mount namespace: %w", err)
	}
	if err := unix.Mount(dir, "/dev", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting the device nodes in %s: %w", dir, err)
	}
	return fmt.Errorf("executing the driver worker: %w", unix.Exec("/proc/self/exe", append(os.Args, "--devices", ""), os.Environ()))
}
