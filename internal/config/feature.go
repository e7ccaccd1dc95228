package config

import (
	"errors"
	"fmt"
	"slices"
)

// Feature is a use of the driver that a container is equipped for.
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

// Features is a choice of features.
type Features []Feature

// DefaultFeatures is what most containers with a GPU need. What they do not
// need would be mounts that each start of a container waits for, and devices
// that it could reach.
func DefaultFeatures() Features { return Features{Compute, Utility} }

// Any says whether one of wanted is chosen.
func (f Features) Any(wanted ...Feature) bool {
	return slices.ContainsFunc(wanted, func(w Feature) bool { return slices.Contains(f, w) })
}

// Validate names all that is wrong with a choice that was read from somewhere.
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
