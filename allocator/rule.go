package allocator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxDevices is how many devices a resource can have. The kubelet takes a list of
// 4 MiB, in which a device has up to 70 bytes, and what leaves a resource is
// listed for a while beside what comes.
const MaxDevices = 20_000

// SharedSuffix is what a resource's name has at its end when it is offered by
// another than its own.
const SharedSuffix = ".shared"

// Rule is how the devices of one resource are advertised.
type Rule struct {
	Name     string `yaml:"name"`     // nvidia.com/gpu, or a MIG profile's, as nvidia.com/mig-1g.5gb
	Replicas int    `yaml:"replicas"` // how many times each of its devices is offered, at least 2
	Rename   string `yaml:"rename"`   // the name with .shared behind it, to be offered by that name; else by its own
}

// Rules are those of a node.
type Rules []Rule

// Of returns the rule of a resource. One without a rule is not shared.
func (r Rules) Of(name string) Rule {
	for _, rule := range r {
		if rule.Name == name {
			return rule
		}
	}
	return Rule{Name: name}
}

// Validate returns everything that is wrong with rules that were read from a file, with their indices.
func (r Rules) Validate() error {
	var errs []error
	for i, one := range r {
		if one.Name != "nvidia.com/gpu" && !strings.HasPrefix(one.Name, "nvidia.com/mig-") || strings.Contains(one.Name, "+") {
			errs = append(errs, fmt.Errorf("resources[%d]: name is %q, want nvidia.com/gpu, or nvidia.com/mig- and a profile with . for +", i, one.Name))
		}
		if slices.ContainsFunc(r[:i], func(earlier Rule) bool { return earlier.Name == one.Name }) {
			errs = append(errs, fmt.Errorf("resources[%d]: %s is there twice, want it once", i, one.Name))
		}
		if one.Rename != "" && one.Rename != one.Name+SharedSuffix {
			errs = append(errs, fmt.Errorf("resources[%d]: rename is %q, want %q, or nothing", i, one.Rename, one.Name+SharedSuffix))
		}
		if one.Replicas < 2 || one.Replicas > MaxDevices {
			errs = append(errs, fmt.Errorf("resources[%d]: replicas is %d, want 2 to %d; leave the resource out for GPUs that are not shared", i, one.Replicas, MaxDevices))
		}
	}
	return errors.Join(errs...)
}
