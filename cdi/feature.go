package cdi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Feature is a driver capability to expose to containers.
type Feature string

// Driver capabilities.
const (
	Compute  Feature = "compute"  // CUDA and OpenCL
	Utility  Feature = "utility"  // NVML and nvidia-smi
	Graphics Feature = "graphics" // OpenGL, EGL, Vulkan and OptiX
	Video    Feature = "video"    // video decoding and encoding
	Display  Feature = "display"  // X server, screen output and capture
)

var allFeatures = Features{Compute, Utility, Graphics, Video, Display}

// Features are the driver capabilities to expose to containers. Each adds mounts, which delay the start of containers,
// and may expose more device nodes. Empty Features stand for the default. Inspect returns an error if the driver lacks
// a selected feature, because containers would fail with errors that are hard to diagnose.
type Features []Feature

// The default covers most containers with a GPU. Some driver packages, such as those for servers, lack the optional
// features. With such a driver, GPUs must stay available.
var (
	defaultFeatures  = Features{Compute, Utility}
	optionalFeatures = Features{Video}
)

// AllFeatures returns all features.
func AllFeatures() Features { return slices.Clone(allFeatures) }

// String returns the names of the features.
func (f Features) String() string {
	names := make([]string, len(f))
	for i, feature := range f {
		names[i] = string(feature)
	}
	return strings.Join(names, ", ")
}

// Any reports whether f contains at least one of the given features.
func (f Features) Any(features ...Feature) bool {
	return slices.ContainsFunc(features, func(feature Feature) bool { return slices.Contains(f, feature) })
}

// Validate returns an error for each unknown feature.
func (f Features) Validate() error {
	var errs []error
	for _, feature := range f {
		if !slices.Contains(allFeatures, feature) {
			errs = append(errs, fmt.Errorf("unknown feature %q; supported features: %s", feature, allFeatures))
		}
	}
	return errors.Join(errs...)
}

// DefaultFeatures returns the default features for a driver: the optional ones only if the driver has their libraries.
func DefaultFeatures(root host.DriverRoot, driver gpu.Driver) Features {
	features := slices.Clone(defaultFeatures)
	for _, optional := range optionalFeatures {
		if _, err := findLibraries(root, driver, Features{optional}); err == nil {
			features = append(features, optional)
		}
	}
	return features
}
