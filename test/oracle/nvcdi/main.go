// Command nvcdi prints the CDI spec that NVIDIA's library generates on this machine, with the device names of
// nvidia-ctk. Its argument is the library's mode, such as nvml.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
)

func main() {
	if err := write(nvcdi.Mode(os.Args[1])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(mode nvcdi.Mode) error {
	byIndex, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyIndex)
	if err != nil {
		return err
	}
	byUUID, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return err
	}
	lib, err := nvcdi.New(
		nvcdi.WithMode(mode),
		nvcdi.WithDeviceNamers(byIndex, byUUID),
		nvcdi.WithMergedDeviceOptions(transform.WithName("all"), transform.WithSkipIfExists(true)),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		// The simulated driver's libnvidia-sandboxutils has no functions. With this flag the library uses NVML and the
		// file system instead.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return err
	}
	spec, err := lib.GetSpec()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(spec.Raw())
}
