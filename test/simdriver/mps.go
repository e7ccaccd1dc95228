package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mpsPrograms are simulated for drivers that support protocol 3 of MPS.
var mpsPrograms = []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// supportsMPS reports whether a driver version supports protocol 3 of MPS.
func supportsMPS(version string) bool {
	const since = 615
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= since
}

// MPSFault is a fault of the MPS control daemon; see SetMPSFault.
type MPSFault string

// The faults, as in src/mps/daemon.h.
const (
	MPSWedged         MPSFault = "wedged"          // clients hang in cuInit, while the status is Ready
	MPSCommandsHang   MPSFault = "commands-hang"   // all commands hang
	MPSTerminateHangs MPSFault = "terminate-hangs" // "client terminate" hangs
	MPSServerVanishes MPSFault = "server-vanishes" // "server create" succeeds, then the server vanishes
)

// SetMPSFault sets a fault of the MPS control daemon with this pipe directory. MPSWedged and MPSTerminateHangs can also
// be set for one server, by the server's directory, and then end with the server. What hangs continues when the fault
// ends.
func SetMPSFault(pipeDirectory string, f MPSFault) error {
	if err := os.WriteFile(f.file(pipeDirectory), nil, 0o600); err != nil {
		return fmt.Errorf("setting a fault of MPS: %w", err)
	}
	return nil
}

// ClearMPSFault ends a fault. It has no effect if the fault is not set.
func ClearMPSFault(pipeDirectory string, f MPSFault) error {
	if err := os.Remove(f.file(pipeDirectory)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clearing a fault of MPS: %w", err)
	}
	return nil
}

func (f MPSFault) file(pipeDirectory string) string {
	return filepath.Join(pipeDirectory, "nvsim-"+string(f))
}
