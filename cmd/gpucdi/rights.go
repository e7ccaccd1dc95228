package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// keptRights is the one capability that serving takes: whoever has CAP_SYS_ADMIN
// may see all MIG devices, and the memory of the GPUs that are cut; others only what
// they were given (NVIDIA's MIG user guide, "Device Nodes and Capabilities").
const keptRights = uint64(1) << unix.CAP_SYS_ADMIN

// dropRights gives up for good all capabilities but keptRights, in this process
// and in all that it starts. They belong to threads, of which Go has several by
// now, and in a program with cgo, as with the race detector, it cannot reach them
// all; so the program is started anew, as the same process, from a thread that has
// given them up. There it returns. It takes some 9 ms.
func dropRights() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // the lower and the upper 32
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("reading the capabilities: %w", err)
	}
	permitted := uint64(sets[1].Permitted)<<32 | uint64(sets[0].Permitted)
	final, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("asking whether capabilities can be gained: %w", err)
	}
	if final == 1 && permitted&^keptRights == 0 {
		return nil
	}

	if err := dropBounding(); err != nil {
		return fmt.Errorf("dropping capabilities from the bounding set: %w", err)
	}
	for i := range sets {
		kept := uint32(keptRights >> (32 * i))
		sets[i].Effective &= kept
		sets[i].Permitted &= kept
		sets[i].Inheritable &= kept
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keeping capabilities from being gained again: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return fmt.Errorf("starting %s anew: %w", self, unix.Exec(self, os.Args, os.Environ()))
}

// dropBounding keeps programs that are started from what root would get anew. Who
// may not do that has no root's rights to lose.
func dropBounding() error {
	for c := range 64 {
		if keptRights&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		switch {
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL): // past the kernel's last
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}
