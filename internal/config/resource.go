package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Resource says how the devices of one resource are offered.
type Resource struct {
	Name     string `yaml:"name"`     // nvidia.com/gpu, or a MIG profile's, as nvidia.com/mig-1g.5gb
	Replicas int    `yaml:"replicas"` // how many times each of its devices is offered, at least 2
}

// Resources are those that the file says something of.
type Resources []Resource

// MaxDevices is how many devices a resource can have. The kubelet takes a list of
// 4 MiB, in which a device has up to 70 bytes, and what leaves a resource is
// listed for a while beside what comes.
const MaxDevices = 20_000

// Replicas is how many times each device of a resource is offered; 0 when it is
// not shared.
func (r Resources) Replicas(name string) int {
	for _, one := range r {
		if one.Name == name {
			return one.Replicas
		}
	}
	return 0
}

func (r Resources) validate() error {
	var errs []error
	for i, one := range r {
		if one.Name != "nvidia.com/gpu" && !strings.HasPrefix(one.Name, "nvidia.com/mig-") {
			errs = append(errs, fmt.Errorf("resources[%d]: name is %q, want nvidia.com/gpu, or nvidia.com/mig- and a profile", i, one.Name))
		}
		if slices.ContainsFunc(r[:i], func(earlier Resource) bool { return earlier.Name == one.Name }) {
			errs = append(errs, fmt.Errorf("resources[%d]: %s is there twice, want it once", i, one.Name))
		}
		if one.Replicas < 2 || one.Replicas > MaxDevices {
			errs = append(errs, fmt.Errorf("resources[%d]: replicas is %d, want 2 to %d; leave the resource out for GPUs that are not shared", i, one.Replicas, MaxDevices))
		}
	}
	return errors.Join(errs...)
}
