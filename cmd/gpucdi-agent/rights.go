package main

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// keptRight is the one capability that serving takes, and that only for gpucdi-nvml:
// whoever has CAP_SYS_ADMIN may see all MIG devices, and the memory of the GPUs that
// are cut; others only what they were given (NVIDIA's MIG user guide, "Device Nodes
// and Capabilities").
const keptRight = cap.SYS_ADMIN

// dropRights gives up for good what serving does not take. This process cannot use
// any capability from then on; keptRight stays permitted, so that gpucdi-nvml, like
// all that root starts, has it again. Nothing else can: with no_new_privs, a program
// gets no more than who starts it is permitted (capabilities(7)).
func dropRights() error {
	has, err := cap.GetProc().GetFlag(cap.Permitted, keptRight)
	if err != nil {
		return fmt.Errorf("reading the capabilities: %w", err)
	}
	kept := cap.NewSet()
	if err := kept.SetFlag(cap.Permitted, has, keptRight); err != nil {
		return fmt.Errorf("choosing capabilities: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("keeping capabilities from being gained: %w", err)
	}
	if err := kept.SetProc(); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return nil
}
