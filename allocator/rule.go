package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// MaxDevices bounds the device IDs of a resource. The kubelet accepts messages of up to 4 MiB, and a device takes up to
// 70 bytes. The rest is for draining devices, which are listed in addition.
const MaxDevices = 20_000

// SharedSuffix is the suffix of renamed resources.
const SharedSuffix = ".shared"

// Rule configures how the devices that it matches are advertised.
type Rule struct {
	Select   Selector `yaml:"select"`   // properties of the devices that the rule applies to; without it, the rule applies to all devices whose default resource equals name, which must be nvidia.com/gpu or that of a MIG profile, such as nvidia.com/mig-1g.5gb
	Name     string   `yaml:"name"`     // extended resource to advertise the devices as; empty keeps their default
	Mode     Mode     `yaml:"mode"`     // API through which the devices are allocated; empty: that of allocation.mode
	Exclude  bool     `yaml:"exclude"`  // whether to never advertise the devices; the health of their GPUs is still monitored
	Replicas int      `yaml:"replicas"` // replicas to advertise of each device, at least 2

	Features []string `yaml:"features"` // driver capabilities that containers with the devices get in addition to cdi.features; the devices are unhealthy while the driver lacks one

	Share ShareUnit `yaml:"share"` // how ResourceClaims share each device: with memory, each claim gets the cores and memory that it requests; with replicas, each claim gets one replica unless it requests more; only in mode dra

	Limits Limits `yaml:"limits"` // with memory, the driver limits the GPU memory of each pod to that of its replicas, such as half of a GPU with two of four; with memory+compute, MPS also limits the compute time of each container to that of its replica; empty: no limits
	Level  Level  `yaml:"level"`  // with any, devices whose limits the driver cannot enforce are shared without limits; empty: such devices are unhealthy

	FailRequestsGreaterThanOne bool `yaml:"failRequestsGreaterThanOne"` // whether a container that requests several replicas is rejected

	Rename string `yaml:"rename"` // resource to advertise the replicas as: name with the suffix .shared; only without select; empty keeps name
}

// Rules are the rules of one node. The first one that matches a device applies to it.
type Rules []Rule

// noRule is the rule position of a device that no rule matches.
const noRule = -1

// Resource returns the resource under which the rule advertises a device. standard is the device's default resource.
func (r Rule) Resource(standard string) string { return cmp.Or(r.Rename, r.Name, standard) }

// Removes reports whether the rule removes a matching device from its default resource. Renaming does not: the resource
// is the same under another name.
func (r Rule) Removes(standard string) bool {
	return r.Exclude || !r.Select.IsZero() && r.Resource(standard) != standard
}

// Match returns the first rule that matches a GPU, or its MIG device m if that is not nil, and the position of the
// rule. If none matches, it returns the zero Rule and a negative position. standard is the device's default resource.
func (r Rules) Match(g gpu.GPU, m *gpu.MIGDevice, standard string) (Rule, int) {
	for i, rule := range r {
		if rule.matches(g, m, standard) {
			return rule, i
		}
	}
	return Rule{}, noRule
}

// matches reports whether the rule matches a device. Excluding a GPU excludes its MIG devices, so that the GPU stays
// excluded when it is partitioned.
func (r Rule) matches(g gpu.GPU, m *gpu.MIGDevice, standard string) bool {
	switch {
	case r.Select.IsZero():
		return r.Name == standard
	case m == nil || r.Exclude && !r.Select.selectsMIG():
		return r.Select.matchesGPU(g)
	}
	return r.Select.matchesMIG(g, *m)
}

// ValidateRules returns all problems of the rules as one error with a line for each, which starts with its config key.
// It does not check whether names are valid in Kubernetes.
func (p Policy) ValidateRules() error {
	var errs []error
	r := p.Rules
	for i, rule := range r {
		key := fmt.Sprintf("resources[%d]", i)
		for _, problem := range slices.Concat(rule.Select.problems(), rule.problems(), rule.sharingProblems(p.mode(rule))) {
			errs = append(errs, errors.New(key+problem))
		}
		if p.mode(rule) == ModeDRA && len(rule.Features) > 0 {
			errs = append(errs, fmt.Errorf("%s: want mode %s with features, got %s; in that mode, a DeviceClass or claim selects features",
				key, ModeDevicePlugin, ModeDRA))
		}
		same := func(earlier Rule) bool { return earlier.Name == rule.Name && earlier.Select.IsZero() }
		if rule.Select.IsZero() && slices.ContainsFunc(r[:i], same) {
			errs = append(errs, fmt.Errorf("%s.name: want one rule without select for each resource, got another for %q", key, rule.Name))
		}
	}
	return errors.Join(errs...)
}

// problems returns the problems of a rule, each starting with the key.
func (r Rule) problems() (found []string) {
	invalid := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	selects := !r.Select.IsZero()
	switch {
	case !selects && (!IsStandardResource(r.Name) || strings.Contains(r.Name, "+")):
		invalid(".name: want %s or %s<profile> with . for +, got %q; set select for other names", GPUResource, migPrefix, r.Name)
	case selects && r.Name == "" && r.Mode == "" && r.Replicas == 0 && r.Share == "" && len(r.Features) == 0 && !r.Exclude:
		invalid(": want name, mode, replicas, share, features or exclude, got none")
	}
	if r.Mode != "" && !slices.Contains(Modes(), r.Mode) {
		invalid(".mode: want %s or %s, got %q", ModeDevicePlugin, ModeDRA, r.Mode)
	}
	if r.Exclude {
		if selects && r.Name != "" || r.Mode != "" || r.Replicas != 0 || r.Rename != "" || len(r.Features) > 0 || r.FailRequestsGreaterThanOne ||
			r.Share != "" || r.Limits != "" || r.Level != "" {
			invalid(".exclude: want no other key but select, or name without select, since excluded devices are not advertised")
		}
		return found
	}
	switch {
	case selects && r.Rename != "":
		invalid(".rename: want name instead, since the rule has select")
	case r.Rename != "" && r.Rename != r.Name+SharedSuffix:
		invalid(".rename: want %q or nothing, got %q", r.Name+SharedSuffix, r.Rename)
	}
	switch {
	case r.Replicas >= 2 && r.Replicas <= MaxDevices:
	case !selects && r.Mode == "" && r.Share == "" && len(r.Features) == 0:
		invalid(".replicas: want 2 to %d, got %d; remove the resource to disable sharing", MaxDevices, r.Replicas)
	case r.Replicas != 0:
		invalid(".replicas: want 2 to %d, got %d; remove the key to disable sharing", MaxDevices, r.Replicas)
	case r.Rename != "" && !selects:
		invalid(".rename: want replicas, since devices without replicas are not shared")
	case r.FailRequestsGreaterThanOne:
		invalid(".failRequestsGreaterThanOne: want replicas, since devices without replicas are not shared")
	case r.Limits != "":
		invalid(".limits: want replicas, since devices without replicas are not shared")
	}
	return append(found, r.limitProblems()...)
}
