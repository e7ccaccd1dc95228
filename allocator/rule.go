package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// MaxDevices bounds the devices of a resource. The kubelet accepts messages of up to 4 MiB, and a device takes up to
// 70 bytes; draining devices are listed in addition.
const MaxDevices = 20_000

// SharedSuffix is the suffix of renamed resources.
const SharedSuffix = ".shared"

// Rule configures how the devices that it matches are advertised.
type Rule struct {
	Select   Selector `yaml:"select"`   // properties of the devices that the rule applies to; without it, the rule applies to the devices whose default resource, nvidia.com/gpu or that of a MIG profile such as nvidia.com/mig-1g.5gb, equals name
	Name     string   `yaml:"name"`     // extended resource to advertise the devices as; empty keeps their default
	Mode     Mode     `yaml:"mode"`     // API through which the devices are allocated; empty stands for allocation.mode
	Exclude  bool     `yaml:"exclude"`  // whether to never advertise the devices; the health of their GPUs is still monitored
	Replicas int      `yaml:"replicas"` // replicas to advertise of each device, at least 2

	Features []string `yaml:"features"` // driver capabilities that containers with the devices get in addition to cdi.features; the devices are unhealthy while the driver lacks one

	Share Sharing `yaml:"share"` // how ResourceClaims share each device: by memory, so that each gets the cores and memory that it requests, or by replicas, so that each gets one of replicas unless it requests more; only in mode dra

	Limits Limits `yaml:"limits"` // memory limits each pod to the part of its replicas, such as half of a GPU with two of four, enforced by the driver; empty: no limits
	Level  Level  `yaml:"level"`  // any shares devices without limits where the driver cannot enforce them; empty: such devices are unhealthy

	FailRequestsGreaterThanOne bool `yaml:"failRequestsGreaterThanOne"` // whether a container that requests several replicas is rejected

	Rename string `yaml:"rename"` // resource to advertise the replicas as, which must be name followed by .shared; only without select; empty keeps name
}

// Rules are the rules of one node. The first that matches a device applies to it.
type Rules []Rule

// noRule is the position of the rule of a device that no rule matches.
const noRule = -1

// Resource returns the resource under which a device that the rule matches is advertised, given its default resource.
func (r Rule) Resource(standard string) string { return cmp.Or(r.Rename, r.Name, standard) }

// Removes reports whether the rule leaves a device that it matches out of its default resource. A renamed resource is
// the same one under another name.
func (r Rule) Removes(standard string) bool {
	return r.Exclude || !r.Select.IsZero() && r.Resource(standard) != standard
}

// Match returns the first rule that matches a GPU, or a MIG device of it if m is not nil, and its position; the zero
// Rule and a negative position if there is none. standard is the resource of the device without rules.
func (r Rules) Match(g gpu.GPU, m *gpu.MIGDevice, standard string) (Rule, int) {
	for i, rule := range r {
		if rule.matches(g, m, standard) {
			return rule, i
		}
	}
	return Rule{}, noRule
}

// matches reports whether the rule matches a device. Excluding a GPU excludes its MIG devices, so that the GPU is not
// used once it is partitioned.
func (r Rule) matches(g gpu.GPU, m *gpu.MIGDevice, standard string) bool {
	switch {
	case r.Select.IsZero():
		return r.Name == standard
	case m == nil || r.Exclude && !r.Select.selectsMIG():
		return r.Select.matchesGPU(g)
	}
	return r.Select.matchesMIG(g, *m)
}

// ValidateRules returns every problem of rules that were read from a config file, one per line, each with its key. It
// does not check whether names are valid in Kubernetes.
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
			errs = append(errs, fmt.Errorf("%s.name: want each resource once without select, got %q again", key, rule.Name))
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
