// Command oracle prints the CDI spec that NVIDIA's library makes for a node:
//
//	oracle ROOT NVML
//
// ROOT is a file system with a driver in it, NVML that driver's library. It is
// a module of its own, so that nothing else depends on that library.
package main

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func run(root, library string) error {
	lib, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(nvml.New(nvml.WithLibraryPath(library))),
		nvcdi.WithDriverRoot(root),
		nvcdi.WithDevRoot(root),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		// The simulated driver has that library's file, and none of its functions.
		nvcdi.WithFeatureFlag(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return fmt.Errorf("opening NVIDIA's library: %w", err)
	}
	spec, err := lib.GetSpec()
	if err != nil {
		return fmt.Errorf("making a spec of %s: %w", root, err)
	}
	_, err = spec.WriteTo(os.Stdout)
	return err
}
