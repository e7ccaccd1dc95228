// Package config reads the NodeConfig file. Every key is optional. "make reference" generates the reference in
// docs/configuration.md from the types here and those that they use, so the comments of their fields are written
// for admins.
package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/kubelet"
)

// Config is the effective config of one node.
type Config struct {
	CDI        CDI        `yaml:"cdi"`
	MIG        MIG        `yaml:"mig"`
	Labels     Labels     `yaml:"labels"`
	Health     Health     `yaml:"health"`
	Allocation Allocation `yaml:"allocation"`

	// Signals for tools that drain, reboot or replace nodes; see docs/remediation.md.
	Remediation Remediation `yaml:"remediation"`

	// Checks of containers through the Node Resource Interface of the runtime; see docs/nri.md.
	NRI NRI `yaml:"nri"`

	// Settings of GPUs that ResourceClaims share, as selected by resources rules with the key share;
	// see docs/sharing.md.
	Shares allocator.Shares `yaml:"shares"`

	// Resource for monitoring pods, such as dcgm-exporter; see docs/monitoring-pods.md.
	Monitoring allocator.Monitoring `yaml:"monitoring"`

	// Rules for how GPUs and MIG devices are advertised; see docs/resources.md. The first rule that
	// matches a device applies. A device that no rule matches is advertised as nvidia.com/gpu or
	// nvidia.com/mig-<profile>. Each rule has:
	Resources allocator.Rules `yaml:"resources"`
}

// CDI configures the CDI specs, and how CDI device names are passed to the container runtime.
type CDI struct {
	// Driver capabilities to expose to containers; docs/features.md lists the files and device
	// nodes of each. Empty stands for compute and utility, and video if the driver has it. All GPUs
	// are unhealthy while a file that a selected capability requires is missing.
	Features cdi.Features `yaml:"features"`

	// Classes of auxiliary devices to inject into each container with a GPU, if the node has them;
	// see docs/other-devices.md.
	Classes []cdi.Class `yaml:"classes"`

	// How CDI device names are passed to the container runtime. A runtime that supports both
	// injects each device once.
	PassBy []kubelet.PassBy `yaml:"passBy"`

	// Path of gpucdi-hook on the node, to run for every container with a GPU; empty disables it.
	// docs/images.md lists the images that require it. All GPUs are unhealthy while the file is
	// missing.
	Hook string `yaml:"hook"`
}

// MIG configures how MIG devices are advertised.
type MIG struct {
	// How MIG devices are advertised; docs/mig.md compares the strategies.
	Strategy allocator.MIGStrategy `yaml:"strategy"`
}

// Labels configures the GPU labels of the node.
type Labels struct {
	// Where the GPU labels of the node are published; docs/labels.md lists them.
	Place LabelPlace `yaml:"place"`
}

// LabelPlace is where labels are published.
type LabelPlace string

// The label places.
const (
	LabelNode LabelPlace = "node" // on the Node, through the API server
	LabelNFD  LabelPlace = "nfd"  // in a feature file for Node Feature Discovery
	LabelNone LabelPlace = "none" // nowhere
)

// Health configures how GPUs are monitored.
type Health struct {
	// Interval between probes of each GPU, and between attempts to find a missing driver or GPU. At
	// least 1s.
	ProbeInterval time.Duration `yaml:"probeInterval"`

	// Time without further faults before a GPU recovers from a transient fault.
	QuietPeriod time.Duration `yaml:"quietPeriod"`

	// Time that a driver call may take before its GPU is considered unresponsive. At least 1s.
	// Without persistence mode, initializing many GPUs takes several seconds.
	CallTimeout time.Duration `yaml:"callTimeout"`

	// Overrides of the XID classes in docs/health.md.
	XIDs XIDs `yaml:"xids"`
}

// XIDs overrides the classes of single XIDs.
type XIDs struct {
	// XIDs that do not affect the health of a GPU.
	Ignore []int `yaml:"ignore"`

	// XIDs that make a GPU unhealthy until it disappears and returns, for example by a reboot.
	Fatal []int `yaml:"fatal"`
}

// Allocation configures how GPUs are allocated.
type Allocation struct {
	// API through which GPUs are allocated; dra requires dra.enabled of the chart. Running pods keep
	// their GPUs when the mode changes; see docs/dra.md.
	Mode allocator.Mode `yaml:"mode"`

	// Effect of the taints that GPUs with a fault have in the ResourceSlices. The effect of a cordon is
	// always NoSchedule.
	TaintEffect TaintEffect `yaml:"taintEffect"`

	// Whether a GPU is unhealthy while a container outside Kubernetes uses it, such as one started by
	// Docker or nerdctl. Privileged containers are ignored. See docs/runtimes.md.
	RespectForeignContainers bool `yaml:"respectForeignContainers"`
}

// TaintEffect is the effect of the device taints of GPUs with a fault.
type TaintEffect string

// The taint effects.
const (
	NoSchedule TaintEffect = "NoSchedule" // no new claims
	NoExecute  TaintEffect = "NoExecute"  // no new claims, and evicts the pods of existing ones
)

// NRI configures the plugin of the container runtime's Node Resource Interface.
type NRI struct {
	// Whether to check the GPUs of each container before it is created, and to show programs their
	// memory limit as the memory of the GPU. The runtime must have NRI enabled.
	Enabled bool `yaml:"enabled"`

	// Action for a container with a GPU that is not allocated to it.
	Foreign ForeignAction `yaml:"foreign"`
}

// ForeignAction is the action for containers with GPUs that are not allocated to them.
type ForeignAction string

// The actions.
const (
	ForeignReport ForeignAction = "report" // log a warning, and create the container
	ForeignReject ForeignAction = "reject" // fail the creation of the container
)

// Default returns the config of a node whose file sets no key.
func Default() Config {
	return Config{
		CDI:    CDI{PassBy: []kubelet.PassBy{kubelet.ByField, kubelet.ByAnnotation}},
		MIG:    MIG{Strategy: allocator.MIGNone},
		Labels: Labels{Place: LabelNode},
		Health: Health{
			ProbeInterval: 5 * time.Second,
			QuietPeriod:   time.Minute,
			CallTimeout:   30 * time.Second,
		},
		Allocation:  Allocation{Mode: allocator.ModeDevicePlugin, TaintEffect: NoSchedule},
		Remediation: Remediation{Taint: NodeTaintNone, After: 2 * time.Minute, Faults: health.RequiringRepair()},
		NRI:         NRI{Foreign: ForeignReport},
		Shares:      allocator.DefaultShares(),
		Monitoring:  allocator.Monitoring{Count: 4},
	}
}

// validate returns every problem, one per line, each with its key.
func (c Config) validate() error {
	var errs []error
	invalid := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	errs = append(errs,
		prefixLines("cdi.features: ", c.CDI.Features.Validate()),
		prefixLines("cdi.classes: ", cdi.ValidateClasses(c.CDI.Classes)))
	passBy := []kubelet.PassBy{kubelet.ByField, kubelet.ByAnnotation}
	if len(c.CDI.PassBy) == 0 {
		invalid("cdi.passBy: want field, annotation or both, got none; pods would start without their GPUs")
	}
	for i, by := range c.CDI.PassBy {
		if !slices.Contains(passBy, by) {
			invalid("cdi.passBy[%d]: want %s, got %q", i, oneOf(passBy), by)
		}
	}
	if c.CDI.Hook != "" && !path.IsAbs(c.CDI.Hook) {
		invalid("cdi.hook: want an absolute path on the node, got %q", c.CDI.Hook)
	}
	strategies := []allocator.MIGStrategy{allocator.MIGNone, allocator.MIGSingle, allocator.MIGMixed}
	if !slices.Contains(strategies, c.MIG.Strategy) {
		invalid("mig.strategy: want %s, got %q", oneOf(strategies), c.MIG.Strategy)
	}
	places := []LabelPlace{LabelNode, LabelNFD, LabelNone}
	if !slices.Contains(places, c.Labels.Place) {
		invalid("labels.place: want %s, got %q", oneOf(places), c.Labels.Place)
	}
	if d := c.Health.ProbeInterval; d < time.Second {
		invalid("health.probeInterval: want at least 1s, got %s", d)
	}
	if d := c.Health.QuietPeriod; d < 0 {
		invalid("health.quietPeriod: want at least 0s, got %s", d)
	}
	if d := c.Health.CallTimeout; d < time.Second {
		invalid("health.callTimeout: want at least 1s, got %s", d)
	}
	for _, xid := range c.Health.XIDs.Ignore {
		if slices.Contains(c.Health.XIDs.Fatal, xid) {
			invalid("health.xids: want each XID in ignore or in fatal, got %d in both", xid)
		}
	}
	if modes := allocator.Modes(); !slices.Contains(modes, c.Allocation.Mode) {
		invalid("allocation.mode: want %s, got %q", oneOf(modes), c.Allocation.Mode)
	}
	if effects := []TaintEffect{NoSchedule, NoExecute}; !slices.Contains(effects, c.Allocation.TaintEffect) {
		invalid("allocation.taintEffect: want %s, got %q", oneOf(effects), c.Allocation.TaintEffect)
	}
	if actions := []ForeignAction{ForeignReport, ForeignReject}; !slices.Contains(actions, c.NRI.Foreign) {
		invalid("nri.foreign: want %s, got %q", oneOf(actions), c.NRI.Foreign)
	}
	return errors.Join(append(errs, validateNames(c.Resources), validateFeatures(c.Resources), c.Policy().ValidateRules(),
		c.validateShares(), c.validateMonitoring(), c.Remediation.validate())...)
}

// Policy returns how the node advertises its devices.
func (c Config) Policy() allocator.Policy {
	return allocator.Policy{MIG: c.MIG.Strategy, Mode: c.Allocation.Mode, Rules: c.Resources, Monitoring: c.Monitoring, Shares: c.Shares}
}

func (c Config) validateShares() error {
	var errs []error
	for _, problem := range c.Shares.Problems() {
		errs = append(errs, errors.New("shares."+problem))
	}
	return errors.Join(errs...)
}

func (c Config) validateMonitoring() error {
	var errs []error
	name := c.Monitoring.Resource
	same := func(r allocator.Rule) bool { return r.Name == name || r.Rename == name }
	if problem := invalidResource(name); problem != "" {
		errs = append(errs, fmt.Errorf("monitoring.resource: want a resource name such as nvidia.com/gpu-monitor, got %q: %s", name, problem))
	} else if allocator.IsStandardResource(name) || name != "" && slices.ContainsFunc(c.Resources, same) {
		errs = append(errs, fmt.Errorf("monitoring.resource: want a name that no GPU or MIG device has, got %q", name))
	}
	if n := c.Monitoring.Count; n < 1 || n > allocator.MaxMonitors {
		errs = append(errs, fmt.Errorf("monitoring.count: want 1 to %d, got %d; remove monitoring.resource to disable it", allocator.MaxMonitors, n))
	}
	return errors.Join(errs...)
}

// validateNames returns an error for each resource name that Kubernetes rejects, except names that Policy.ValidateRules
// rejects.
func validateNames(rules allocator.Rules) error {
	var errs []error
	for i, rule := range rules {
		if rule.Select.IsZero() && (!allocator.IsStandardResource(rule.Name) || strings.Contains(rule.Name, "+")) {
			continue
		}
		if problem := invalidResource(rule.Name); problem != "" {
			errs = append(errs, fmt.Errorf("resources[%d].name: want a resource name such as nvidia.com/h100, got %q: %s", i, rule.Name, problem))
		}
	}
	return errors.Join(errs...)
}

// validateFeatures returns an error for each unknown feature of a rule.
func validateFeatures(rules allocator.Rules) error {
	var errs []error
	for i, rule := range rules {
		features := make(cdi.Features, len(rule.Features))
		for j, name := range rule.Features {
			features[j] = cdi.Feature(name)
		}
		errs = append(errs, prefixLines(fmt.Sprintf("resources[%d].features: ", i), features.Validate()))
	}
	return errors.Join(errs...)
}

// invalidResource returns why Kubernetes rejects a name of an extended resource; empty if it is valid or missing.
func invalidResource(name string) string {
	switch {
	case name == "":
		return ""
	case !strings.Contains(name, "/"):
		return "it has no domain"
	case strings.Contains(name, "kubernetes.io/"): // Kubernetes rejects mykubernetes.io/gpu, too
		return "its domain is reserved"
	case strings.HasPrefix(name, "requests."):
		return "its domain starts with requests., which is reserved for quotas"
	}
	// Quotas count the resource under this name.
	return strings.Join(validation.IsQualifiedName("requests."+name), "; ")
}

// oneOf formats values as "a, b or c".
func oneOf[T ~string](values []T) string {
	var text strings.Builder
	for i, value := range values {
		switch {
		case i > 0 && i == len(values)-1:
			text.WriteString(" or ")
		case i > 0:
			text.WriteString(", ")
		}
		text.WriteString(string(value))
	}
	return text.String()
}

// withoutLines returns the lines of an error that another error does not have; nil if there are none.
func withoutLines(err, other error) error {
	if err == nil || other == nil {
		return err
	}
	known := strings.Split(other.Error(), "\n")
	lines := slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return slices.Contains(known, line) })
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines, "\n"))
}

// prefixLines prefixes each line of an error, since an error of errors.Join has several.
func prefixLines(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(prefix + strings.ReplaceAll(err.Error(), "\n", "\n"+prefix))
}
