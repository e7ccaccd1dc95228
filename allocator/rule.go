package allocator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxDevices bounds the devices of a resource. The kubelet accepts messages of up to 4 MiB, and a device takes up to
// 70 bytes; draining devices are listed in addition.
const MaxDevices = 20_000

// SharedSuffix is the suffix of renamed resources.
const SharedSuffix = ".shared"

// Rule configures how the devices of one resource are advertised.
type Rule struct {
	Name     string `yaml:"name"`     // nvidia.com/gpu, or that of a MIG profile such as nvidia.com/mig-1g.5gb
	Replicas int    `yaml:"replicas"` // replicas to advertise of each device, at least 2
	Rename   string `yaml:"rename"`   // name with the suffix .shared to advertise the replicas under; empty keeps the name
}

// Rules are the rules of one node, at most one per resource.
type Rules []Rule

// Of returns the rule of a resource. A resource without a rule is not shared.
func (r Rules) Of(name string) Rule {
	for _, rule := range r {
		if rule.Name == name {
			return rule
		}
	}
	return Rule{Name: name}
}

// Validate returns every problem of rules that were read from a config file, one per line, each with its key.
func (r Rules) Validate() error {
	var errs []error
	for i, rule := range r {
		invalid := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("resources[%d].%s", i, fmt.Sprintf(format, args...)))
		}
		if !IsStandardResource(rule.Name) || strings.Contains(rule.Name, "+") {
			invalid("name: want %s or %s<profile> with . for +, got %q", GPUResource, migPrefix, rule.Name)
		}
		if slices.ContainsFunc(r[:i], func(earlier Rule) bool { return earlier.Name == rule.Name }) {
			invalid("name: want each resource once, got %q again", rule.Name)
		}
		if rule.Rename != "" && rule.Rename != rule.Name+SharedSuffix {
			invalid("rename: want %q or nothing, got %q", rule.Name+SharedSuffix, rule.Rename)
		}
		if rule.Replicas < 2 || rule.Replicas > MaxDevices {
			invalid("replicas: want 2 to %d, got %d; remove the resource to disable sharing", MaxDevices, rule.Replicas)
		}
	}
	return errors.Join(errs...)
}
