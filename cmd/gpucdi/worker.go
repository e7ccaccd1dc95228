package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// workerName is the driver worker's program, installed in the directory of this one.
const workerName = "gpucdi-nvml"

// workerPath returns the path of the driver worker. With an error, it is the path where it is missing.
func workerPath() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program's directory, which has %s: %w", workerName, err)
	}
	path := filepath.Join(filepath.Dir(self), workerName)
	if _, err := exec.LookPath(path); err != nil {
		return path, fmt.Errorf("finding %s: %w; install it in the directory of gpucdi", workerName, err)
	}
	return path, nil
}
