package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// checkKernel refuses a kernel module of another version than the libraries
// that containers would get: their calls fail one by one, in ways that say
// nothing of it. A package that was upgraded under a running kernel does that.
func checkKernel(node host.Root, version string) error {
	loaded, err := kernelVersion(node)
	if err == nil && loaded != "" && loaded != version {
		return fmt.Errorf("the kernel module is of driver %s, NVML says %s: load the module of that version, or reboot the node", loaded, version)
	}
	return err
}

// kernelVersion is the version of the kernel module that is loaded, as far as it tells.
func kernelVersion(node host.Root) (string, error) {
	data, err := node.ReadFile("/proc/driver/nvidia/version")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // a sandbox, whose driver is the host's
	}
	if err != nil {
		return "", fmt.Errorf("reading the version of the kernel module: %w", err)
	}
	return parseKernelVersion(string(data)), nil
}

// parseKernelVersion finds the version in a line such as
//
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 …
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release …
//
// It is empty when there is none.
func parseKernelVersion(text string) string {
	for line := range strings.Lines(text) {
		about, isModule := strings.CutPrefix(line, "NVRM version:")
		if !isModule {
			continue
		}
		for _, field := range strings.Fields(about) {
			if isVersion(field) {
				return field
			}
		}
	}
	return ""
}

// isVersion says whether text is numbers with dots between them.
func isVersion(text string) bool {
	numbers := strings.Split(text, ".")
	for _, n := range numbers {
		if n == "" || strings.Trim(n, "0123456789") != "" {
			return false
		}
	}
	return len(numbers) >= 2
}
