package cdi

import (
	"fmt"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// A variant of a CDI device contains everything that the device contains, and one more feature. The variants of each
// feature have their own spec, whose common edits contain the mounts of the feature. In the spec of the plain devices,
// each variant would have to repeat these mounts.

// variantMark separates the device from the feature in the name of a variant.
const variantMark = "."

// VariantName returns the name of the variant of a GPU or MIG device for a feature: "GPU-….graphics".
func VariantName(uuid string, f Feature) string { return uuid + variantMark + string(f) }

// BuildVariants returns the agent's spec of the variants for a feature. parts must cover all features that the variants
// contain. Like Build, it is pure, and returns an error if parts has no GPU or MIG device of inv.
func BuildVariants(f Feature, inv *gpu.Inventory, parts Parts) (*specs.Spec, error) {
	spec := newSpec(AgentKind, inv, parts)
	for _, d := range namedDevices(inv) {
		if nodes, ok := parts.GPUs[d.uuid]; ok {
			spec.Devices = append(spec.Devices, device(VariantName(d.uuid, f), nodes))
		}
	}
	if len(spec.Devices) == 0 {
		return nil, fmt.Errorf("building the CDI spec of %s with %s: no usable GPUs", AgentKind, f)
	}
	return setVersion(spec)
}

// VariantFile returns the file of the agent's spec of the variants for a feature, in dir.
func VariantFile(f Feature, dir string, root host.Root) *File {
	file := AgentFile(dir, root)
	extension := filepath.Ext(file.Path)
	file.Path = strings.TrimSuffix(file.Path, extension) + "-" + string(f) + extension
	return file
}

// agentFiles are the file names of the agent's GPU specs. No two of them define the same device.
var agentFiles = func() map[string]bool {
	files := []*File{AgentFile("", host.Root{})}
	for _, f := range allFeatures {
		files = append(files, VariantFile(f, "", host.Root{}))
	}
	names := map[string]bool{}
	for _, file := range files {
		names[file.Path] = true
	}
	return names
}()

// validateName returns an error if a UUID is not valid as the name of a CDI device, or could be the name of a variant.
func validateName(uuid string) error {
	if strings.Contains(uuid, variantMark) {
		return fmt.Errorf("it contains the reserved character %q", variantMark)
	}
	return parser.ValidateDeviceName(uuid)
}
