// Package config reads the NodeConfig file: what an admin may set for a node,
// every key optional.
package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// Config is what holds on one node.
type Config struct {
	CDI    CDI    `yaml:"cdi"`
	MIG    MIG    `yaml:"mig"`
	Labels Labels `yaml:"labels"`
	Health Health `yaml:"health"`
}

// CDI says what containers get with a GPU, and how the runtime is told about it.
type CDI struct {
	Features Features `yaml:"features"`
	Classes  []Class  `yaml:"classes"` // of the devices that go with each GPU
	PassBy   []PassBy `yaml:"passBy"`

	// Hook is the node's path of gpucdi-hook; empty for none.
	Hook string `yaml:"hook"`
}

// PassBy is a way for CDI device names to reach the runtime. Runtimes that
// know both take a device once.
type PassBy string

// The ways.
const (
	ByField      PassBy = "field"      // the CRI's own field: containerd 1.7.2, CRI-O 1.28
	ByAnnotation PassBy = "annotation" // what came before it: containerd 1.7.0, CRI-O 1.24
)

// MIG says how MIG devices are offered.
type MIG struct {
	Strategy MIGStrategy `yaml:"strategy"`
}

// MIGStrategy is under which resources MIG devices are offered.
type MIGStrategy string

// The strategies.
const (
	MIGNone   MIGStrategy = "none"   // not at all
	MIGSingle MIGStrategy = "single" // as GPUs, on a node that is cut alike throughout
	MIGMixed  MIGStrategy = "mixed"  // each profile as a resource of its own
)

// Labels says what becomes of the labels that tell about the GPUs.
type Labels struct {
	Place LabelPlace `yaml:"place"`
}

// LabelPlace is where labels are put.
type LabelPlace string

// The places.
const (
	LabelNode LabelPlace = "node" // the Node, through the API server
	LabelNFD  LabelPlace = "nfd"  // a file that Node Feature Discovery reads
	LabelNone LabelPlace = "none"
)

// Health says how the node's GPUs are watched.
type Health struct {
	// ProbeInterval is the time between two looks at every GPU, and between
	// two looks for a driver or a GPU that is not there.
	ProbeInterval time.Duration `yaml:"probeInterval"`

	// QuietPeriod is how long a GPU must show no further fault until one that
	// may pass by itself is over.
	QuietPeriod time.Duration `yaml:"quietPeriod"`

	// CallTimeout is how long a call into the driver may take until the GPU
	// that it is about counts as unresponsive.
	CallTimeout time.Duration `yaml:"callTimeout"`

	XIDs XIDs `yaml:"xids"`
}

// XIDs overrides what single XIDs mean.
type XIDs struct {
	Ignore []int `yaml:"ignore"`
	Fatal  []int `yaml:"fatal"`
}

// Default is the config of a node whose file says nothing.
func Default() Config {
	return Config{
		CDI:    CDI{Features: DefaultFeatures(), PassBy: []PassBy{ByField, ByAnnotation}},
		MIG:    MIG{Strategy: MIGNone},
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
	if err := validateClasses(c.CDI.Classes); err != nil {
		errs = append(errs, fmt.Errorf("cdi.classes: %w", err))
	}
	if len(c.CDI.PassBy) == 0 {
		errs = append(errs, fmt.Errorf("cdi.passBy is empty: pods would start without their GPUs; name %q, %q or both", ByField, ByAnnotation))
	}
	for _, by := range c.CDI.PassBy {
		if !slices.Contains([]PassBy{ByField, ByAnnotation}, by) {
			errs = append(errs, fmt.Errorf("cdi.passBy has %q, want %q or %q", by, ByField, ByAnnotation))
		}
	}
	if c.CDI.Hook != "" && !path.IsAbs(c.CDI.Hook) {
		errs = append(errs, fmt.Errorf("cdi.hook is %q, want an absolute path on the node", c.CDI.Hook))
	}
	if !slices.Contains([]MIGStrategy{MIGNone, MIGSingle, MIGMixed}, c.MIG.Strategy) {
		errs = append(errs, fmt.Errorf("mig.strategy is %q, want %q, %q or %q", c.MIG.Strategy, MIGNone, MIGSingle, MIGMixed))
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
	return errors.Join(errs...)
}
