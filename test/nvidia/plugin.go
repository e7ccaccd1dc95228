// Package nvidia runs NVIDIA's own programs on a node that is a directory with a simulated driver,
// to hold ours against them.
package nvidia

import "path/filepath"

// NoSandboxUtils is a feature flag: the simulated driver's libnvidia-sandboxutils has no functions.
// Without them NVIDIA's programs look at NVML and the files, as they do with most drivers.
const NoSandboxUtils = "disable-nvsandboxutils"

// Plugin is the command line of NVIDIA's device plugin, which tools.Build has put into dir, on the
// node whose root is at root. It is told to do what gpucdi does: to pass GPUs by CDI alone, both
// ways, and no devices of other classes. It always gives all features.
func Plugin(dir, root string) []string {
	return []string{
		filepath.Join(dir, "nvidia-device-plugin"),
		"--device-list-strategy=cdi-cri,cdi-annotations", "--driver-root-ctr-path=" + root,
		"--gds-enabled=false", "--mofed-enabled=false", "--gdrcopy-enabled=false",
		"--cdi-feature-flags=" + NoSandboxUtils,
	}
}
