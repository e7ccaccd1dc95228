package main

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keptRight is the one capability that serving takes, and that only for gpucdi-nvml:
// whoever has CAP_SYS_ADMIN may see all MIG devices, and the memory of the GPUs that
// are cut; others only what they were given (NVIDIA's MIG user guide, "Device Nodes
// and Capabilities").
const keptRight = unix.CAP_SYS_ADMIN

// dropRights gives up for good what serving does not take. All capabilities end in
// this process; keptRight stays permitted, so that gpucdi-nvml, like all that root
// starts, has it again. In a program with cgo, as with the race detector, it fails:
// capabilities are a thread's, and Go does not know all threads there.
func dropRights() error {
	for c := range uintptr(64) {
		if c == keptRight {
			continue
		}
		// Who may not do that has no root's rights to lose; EINVAL is past the last.
		errno := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c)
		if errno == unix.EPERM || errno == unix.EINVAL {
			break
		}
		if errno != 0 {
			return fmt.Errorf("dropping capability %d from what can be gained: %w", c, errno)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // the lower and the upper 32
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("reading the capabilities: %w", err)
	}
	const kept = uint32(1) << keptRight
	sets = [2]unix.CapUserData{{Permitted: sets[0].Permitted & kept}, {}}
	//nolint:gosec // capset(2) takes pointers, and both outlive it
	if errno := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets))); errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", errno)
	}
	if errno := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); errno != 0 {
		return fmt.Errorf("keeping capabilities from being gained: %w", errno)
	}
	return nil
}

//go:uintptrescapes
func allThreads(call, first, second uintptr) syscall.Errno {
	_, _, errno := syscall.AllThreadsSyscall6(call, first, second, 0, 0, 0, 0)
	return errno
}
