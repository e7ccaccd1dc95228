package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// workerName is the program of the driver worker, which is installed in the directory of gpucdi.
const workerName = "gpucdi-nvml"

// workerPath returns the path of the driver worker. If the file is missing or not executable, it returns the path and
// an error.
func workerPath() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the directory of %s: %w", workerName, err)
	}
	path := filepath.Join(filepath.Dir(self), workerName)
	if _, err := exec.LookPath(path); err != nil {
		return path, fmt.Errorf("finding %s: %w; install it in the directory of gpucdi", workerName, err)
	}
	return path, nil
}
