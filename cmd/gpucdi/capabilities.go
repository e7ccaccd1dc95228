package main

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// keptCapability is the only capability that serve requires, and only for gpucdi-nvml. Without CAP_SYS_ADMIN,
// NVML lists only MIG devices whose capability nodes the process can open, and does not report the memory of
// partitioned GPUs (NVIDIA MIG user guide, "Device Nodes and Capabilities").
const keptCapability = cap.SYS_ADMIN

// dropCapabilities permanently drops all capabilities except keptCapability, and sets no_new_privs.
// keptCapability stays permitted but not effective: with no_new_privs, gpucdi-nvml gets at most the permitted
// capabilities of its parent (capabilities(7)). So no system call of this process uses a capability, but an
// attacker in this process could raise keptCapability.
func dropCapabilities() error {
	permitted, err := cap.GetProc().GetFlag(cap.Permitted, keptCapability)
	if err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	kept := cap.NewSet()
	if err := kept.SetFlag(cap.Permitted, permitted, keptCapability); err != nil {
		return fmt.Errorf("selecting capabilities: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	if err := kept.SetProc(); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return nil
}
