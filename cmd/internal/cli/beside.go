package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The programs that stand beside each other.
const (
	Agent = "gpucdi-agent"
	NVML  = "gpucdi-nvml"
)

// Beside returns the path of a program that is installed beside this one.
func Beside(program string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program, since %s stands beside it: %w", program, err)
	}
	path, err := exec.LookPath(filepath.Join(filepath.Dir(self), program))
	if err != nil {
		return "", fmt.Errorf("finding %s: %w (install it beside gpucdi)", program, err)
	}
	return path, nil
}
