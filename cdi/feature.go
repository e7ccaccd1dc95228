package cdi

import (
	"errors"
	"fmt"
	"slices"
)

// Feature is a driver capability that is exposed to containers.
type Feature string

// The features.
const (
	Compute  Feature = "compute"  // CUDA and OpenCL
	Utility  Feature = "utility"  // NVML and nvidia-smi
	Graphics Feature = "graphics" // OpenGL, EGL, Vulkan and OptiX
	Video    Feature = "video"    // decoding and encoding
	Display  Feature = "display"  // an X server, and what drives or captures a screen
)

var allFeatures = Features{Compute, Utility, Graphics, Video, Display}

// Features are those that containers get.
type Features []Feature

// DefaultFeatures returns what most containers with a GPU require. Each further feature costs mounts at each
// start of a container, and exposes devices.
func DefaultFeatures() Features { return Features{Compute, Utility} }

// Any reports whether one of wanted is among them.
func (f Features) Any(wanted ...Feature) bool {
	return slices.ContainsFunc(wanted, func(w Feature) bool { return slices.Contains(f, w) })
}

// Validate returns everything that is wrong with features that were read from a flag or a file.
func (f Features) Validate() error {
	if len(f) == 0 {
		return fmt.Errorf("no feature is chosen: choose of %v", allFeatures)
	}
	var errs []error
	for _, feature := range f {
		if !slices.Contains(allFeatures, feature) {
			errs = append(errs, fmt.Errorf("%q is not a feature: choose of %v", feature, allFeatures))
		}
	}
	return errors.Join(errs...)
}
