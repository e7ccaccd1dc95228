// Package config reads the NodeConfig file, in which every key is optional. make reference generates
// docs/configuration.md from its types and those that they use: the comments of their fields are for admins.
package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/kubelet"
)

// Config is what holds on one node.
type Config struct {
	CDI    CDI    `yaml:"cdi"`
	MIG    MIG    `yaml:"mig"`
	Labels Labels `yaml:"labels"`
	Health Health `yaml:"health"`

	// Resources whose devices several containers can have at a time; docs/sharing.md says what that
	// is and is not. Each has:
	Resources allocator.Rules `yaml:"resources"`
}

// CDI says what containers get with a GPU, and how the runtime is told about it.
type CDI struct {
	// What containers get of the driver; docs/features.md says what is in each. All GPUs are
	// unhealthy while the driver lacks what a feature cannot do without.
	Features cdi.Features `yaml:"features"`

	// Devices besides GPUs that each container with a GPU gets where the node has them; see
	// docs/other-devices.md.
	Classes []cdi.Class `yaml:"classes"`

	// How the runtime is told about a container's devices. A runtime that knows both takes a
	// device once.
	PassBy []kubelet.PassBy `yaml:"passBy"`

	// Where gpucdi-hook is on the node, to be run for every container with a GPU. Empty for no
	// hook: docs/images.md says which images need one. All GPUs are unhealthy while it is not
	// there.
	Hook string `yaml:"hook"`
}

// MIG says how MIG devices are offered.
type MIG struct {
	// How MIG devices are offered; docs/mig.md tells which strategy is for whom.
	Strategy allocator.MIGStrategy `yaml:"strategy"`
}

// Labels says what becomes of the labels that tell about the GPUs.
type Labels struct {
	// Where the labels go that tell about the node's GPUs; docs/labels.md lists them.
	Place LabelPlace `yaml:"place"`
}

// LabelPlace is where labels are put.
type LabelPlace string

// The places.
const (
	LabelNode LabelPlace = "node" // onto the Node, through the API server
	LabelNFD  LabelPlace = "nfd"  // into a file, for Node Feature Discovery
	LabelNone LabelPlace = "none" // nowhere
)

// Health says how the node's GPUs are watched.
type Health struct {
	// The time between two looks at every GPU, and between two looks for a driver or a GPU that
	// is not there. At least 1s.
	ProbeInterval time.Duration `yaml:"probeInterval"`

	// How long a GPU must show no further fault until one that may pass by itself is over.
	QuietPeriod time.Duration `yaml:"quietPeriod"`

	// How long a call into the driver may take until the GPU that it is about counts as
	// unresponsive. At least 1s. To initialise many GPUs takes seconds where nothing keeps the
	// driver ready.
	CallTimeout time.Duration `yaml:"callTimeout"`

	// XIDs that are to mean something else than docs/health.md says.
	XIDs XIDs `yaml:"xids"`
}

// XIDs overrides what single XIDs mean.
type XIDs struct {
	// These do not touch a GPU's health.
	Ignore []int `yaml:"ignore"`

	// These make a GPU unhealthy until it was away and is back, as a reset has it.
	Fatal []int `yaml:"fatal"`
}

// Default is the config of a node whose file says nothing.
func Default() Config {
	return Config{
		CDI:    CDI{Features: cdi.DefaultFeatures(), PassBy: []kubelet.PassBy{kubelet.ByField, kubelet.ByAnnotation}},
		MIG:    MIG{Strategy: allocator.MIGNone},
		Labels: Labels{Place: LabelNode},
		Health: Health{
			ProbeInterval: 5 * time.Second,
			QuietPeriod:   time.Minute,
			CallTimeout:   30 * time.Second,
		},
	}
}

func (c Config) validate() error {
	var errs []error
	if err := c.CDI.Features.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cdi.features: %w", err))
	}
	if err := cdi.ValidateClasses(c.CDI.Classes); err != nil {
		errs = append(errs, fmt.Errorf("cdi.classes: %w", err))
	}
	if len(c.CDI.PassBy) == 0 {
		errs = append(errs, fmt.Errorf("cdi.passBy is empty: pods would start without their GPUs; name %q, %q or both", kubelet.ByField, kubelet.ByAnnotation))
	}
	for _, by := range c.CDI.PassBy {
		if !slices.Contains([]kubelet.PassBy{kubelet.ByField, kubelet.ByAnnotation}, by) {
			errs = append(errs, fmt.Errorf("cdi.passBy has %q, want %q or %q", by, kubelet.ByField, kubelet.ByAnnotation))
		}
	}
	if c.CDI.Hook != "" && !path.IsAbs(c.CDI.Hook) {
		errs = append(errs, fmt.Errorf("cdi.hook is %q, want an absolute path on the node", c.CDI.Hook))
	}
	if strategies := []allocator.MIGStrategy{allocator.MIGNone, allocator.MIGSingle, allocator.MIGMixed}; !slices.Contains(strategies, c.MIG.Strategy) {
		errs = append(errs, fmt.Errorf("mig.strategy is %q, want one of %v", c.MIG.Strategy, strategies))
	}
	if places := []LabelPlace{LabelNode, LabelNFD, LabelNone}; !slices.Contains(places, c.Labels.Place) {
		errs = append(errs, fmt.Errorf("labels.place is %q, want one of %v", c.Labels.Place, places))
	}
	if d := c.Health.ProbeInterval; d < time.Second {
		errs = append(errs, fmt.Errorf("health.probeInterval is %s, want at least 1s", d))
	}
	if d := c.Health.QuietPeriod; d < 0 {
		errs = append(errs, fmt.Errorf("health.quietPeriod is %s, want 0s or more", d))
	}
	if d := c.Health.CallTimeout; d < time.Second {
		errs = append(errs, fmt.Errorf("health.callTimeout is %s, want at least 1s", d))
	}
	for _, xid := range c.Health.XIDs.Ignore {
		if slices.Contains(c.Health.XIDs.Fatal, xid) {
			errs = append(errs, fmt.Errorf("health.xids has %d in ignore and in fatal, want one of them", xid))
		}
	}
	return errors.Join(append(errs, c.Resources.Validate())...)
}
