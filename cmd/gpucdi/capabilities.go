package main

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// keptCapability is the only capability that serve requires, and only for gpucdi-nvml: with
// CAP_SYS_ADMIN a process may see all MIG devices, and the memory of partitioned GPUs;
// without, only those it was given (NVIDIA's MIG user guide, "Device Nodes and
// Capabilities").
const keptCapability = cap.SYS_ADMIN

// dropCapabilities drops all capabilities but keptCapability for good, and sets
// no_new_privs. keptCapability stays permitted without being effective: with no_new_privs a
// program gets no more than its parent is permitted (capabilities(7)), and gpucdi-nvml needs
// it. So no system call of this process uses a capability, but code that takes over this
// process could raise that one again.
func dropCapabilities() error {
	permitted, err := cap.GetProc().GetFlag(cap.Permitted, keptCapability)
	if err != nil {
		return fmt.Errorf("reading the capabilities: %w", err)
	}
	kept := cap.NewSet()
	if err := kept.SetFlag(cap.Permitted, permitted, keptCapability); err != nil {
		return fmt.Errorf("selecting the capabilities to keep: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := kept.SetProc(); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return nil
}
