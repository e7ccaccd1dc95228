package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// checkKernel rejects a kernel module of another version than the libraries, as after an upgrade of the
// package under a running kernel: calls in containers would fail one by one, without naming the cause.
func checkKernel(node host.Root, version string) error {
	loaded, err := KernelModuleVersion(node)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoVersion) {
		return nil // a sandbox, whose driver is the host's
	}
	if err == nil && loaded != version {
		return fmt.Errorf("the kernel module is of driver %s, NVML says %s: load the module of that version, or reboot the node", loaded, version)
	}
	return err
}

var errNoVersion = errors.New("no version found in it")

// KernelModuleVersion returns the driver version of the loaded kernel module. The error is fs.ErrNotExist if
// none is loaded.
func KernelModuleVersion(node host.Root) (string, error) {
	const path = "/proc/driver/nvidia/version"
	data, err := node.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the version of the kernel module: %w", err)
	}
	version := parseKernelVersion(string(data))
	if version == "" {
		return "", fmt.Errorf("reading the version of the kernel module: %s: %w", path, errNoVersion)
	}
	return version, nil
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
