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
	GDS         Class = "gds"
	RDMA        Class = "rdma"
	GDRCopy     Class = "gdrcopy"
	IMEXChannel Class = "imex-channel"
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
