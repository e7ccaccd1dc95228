package config

import (
	"errors"
	"fmt"
	"slices"
)

// Class is a kind of devices besides GPUs, as the CDI kind has it after the
// slash.
type Class string

// The classes that pods with GPUs may get devices of.
const (
	GDS         Class = "gds"          // GPUDirect Storage
	RDMA        Class = "rdma"         // InfiniBand and RoCE adapters
	GDRCopy     Class = "gdrcopy"      // copies to and from GPU memory by the CPU
	IMEXChannel Class = "imex-channel" // memory shared between nodes over NVLink
)

func validateClasses(classes []Class) error {
	all := []Class{GDS, RDMA, GDRCopy, IMEXChannel}
	var errs []error
	for _, c := range classes {
		if !slices.Contains(all, c) {
			errs = append(errs, fmt.Errorf("%q is not a class that goes with GPUs: choose of %v", c, all))
		}
	}
	return errors.Join(errs...)
}
