package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// checkKernel returns an error if the versions of the kernel module and the driver libraries differ, as after a package
// upgrade without a reboot. Driver calls in containers would fail without naming the cause.
func checkKernel(root host.Root, version string) error {
	loaded, err := KernelModuleVersion(root)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoVersion) {
		return nil // as in a sandbox that uses the host's driver, but has its own /proc
	}
	if err == nil && loaded != version {
		return fmt.Errorf("the kernel module has driver version %s, but NVML has %s; load the kernel module of the installed driver, or reboot the node", loaded, version)
	}
	return err
}

var errNoVersion = errors.New("no version found")

// KernelModuleVersion returns the driver version of the loaded kernel module. The error wraps fs.ErrNotExist if it is
// not loaded.
func KernelModuleVersion(root host.Root) (string, error) {
	const path = "/proc/driver/nvidia/version"
	data, err := root.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the kernel module version: %w", err)
	}
	version := parseKernelVersion(string(data))
	if version == "" {
		return "", fmt.Errorf("reading the kernel module version: %s: %w", path, errNoVersion)
	}
	return version, nil
}

// parseKernelVersion returns the version from a line such as
//
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 …
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release …
//
// It returns "" if there is none.
func parseKernelVersion(text string) string {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "NVRM version:")
		if !ok {
			continue
		}
		for _, field := range strings.Fields(rest) {
			if isVersion(field) {
				return field
			}
		}
	}
	return ""
}

// isVersion reports whether text is two or more numbers separated by dots.
func isVersion(text string) bool {
	numbers := strings.Split(text, ".")
	for _, n := range numbers {
		if n == "" || strings.Trim(n, "0123456789") != "" {
			return false
		}
	}
	return len(numbers) >= 2
}
