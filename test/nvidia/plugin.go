// Package nvidia runs NVIDIA's programs on a node that is a directory with a simulated driver, to compare gpucdi with
// them.
package nvidia

import (
	"fmt"
	"path/filepath"
)

// NoSandboxUtils is a feature flag with which NVIDIA's programs use NVML and the file system instead of
// libnvidia-sandboxutils, which has no functions in the simulated driver.
const NoSandboxUtils = "disable-nvsandboxutils"

// Plugin returns the command line of NVIDIA's device plugin, built by tools.Build in dir, for the node at root. Like
// gpucdi, it passes GPUs only with CDI, in CRI fields and annotations, and no devices of other classes. It always
// exposes all driver capabilities.
func Plugin(dir, root string) []string {
	return []string{
		filepath.Join(dir, "nvidia-device-plugin"),
		"--device-list-strategy=cdi-cri,cdi-annotations", "--driver-root-ctr-path=" + root,
		"--gds-enabled=false", "--mofed-enabled=false", "--gdrcopy-enabled=false",
		"--cdi-feature-flags=" + NoSandboxUtils,
	}
}

// TimeSlicing returns a config of NVIDIA's device plugin that advertises replicas of the devices of a resource.
func TimeSlicing(resource string, replicas int) string {
	return fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: %s, replicas: %d}]}}\n", resource, replicas)
}

// RuntimeConfigFile is the path of the configuration of NVIDIA's container runtime.
const RuntimeConfigFile = "/etc/nvidia-container-runtime/config.toml"

// RuntimeConfig configures NVIDIA's container runtime for the simulated driver. All other settings have their defaults.
const RuntimeConfig = `[nvidia-container-runtime.modes.jit-cdi]
nvcdi-feature-flags = ["` + NoSandboxUtils + `"]
`
