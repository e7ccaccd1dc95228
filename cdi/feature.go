package cdi

import (
	"errors"
	"fmt"
	"slices"
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

// Features are the driver capabilities to expose to containers.
type Features []Feature

// DefaultFeatures returns the features that most containers with a GPU require. Each further feature adds mounts, which
// delay the start of containers, and exposes more device nodes.
func DefaultFeatures() Features { return Features{Compute, Utility} }

// Any reports whether f contains at least one of the given features.
func (f Features) Any(features ...Feature) bool {
	return slices.ContainsFunc(features, func(feature Feature) bool { return slices.Contains(f, feature) })
}

// Validate returns an error if f is empty or contains unknown features.
func (f Features) Validate() error {
	if len(f) == 0 {
		return fmt.Errorf("no features selected; supported features: %v", allFeatures)
	}
	var errs []error
	for _, feature := range f {
		if !slices.Contains(allFeatures, feature) {
			errs = append(errs, fmt.Errorf("unknown feature %q; supported features: %v", feature, allFeatures))
		}
	}
	return errors.Join(errs...)
}
