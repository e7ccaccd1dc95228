// Package config reads the NodeConfig file: what an admin may set for a node,
// every key optional.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"sigs.k8s.io/yaml"
)

// The file's own type.
const (
	APIVersion = "gpucdi.dev/v1"
	Kind       = "NodeConfig"
)

// Config is the NodeConfig file.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	CDI        CDI    `json:"cdi"`
	Health     Health `json:"health"`
}

// CDI says what containers get with a GPU, and how the runtime is told about it.
type CDI struct {
	Features Features `json:"features"`
	PassBy   []PassBy `json:"passBy"`
}

// PassBy is a way for CDI device names to reach the runtime. Runtimes that
// know both take a device once.
type PassBy string

// The ways.
const (
	ByField      PassBy = "field"      // the CRI's own field: containerd 1.7.2, CRI-O 1.28
	ByAnnotation PassBy = "annotation" // what came before it: containerd 1.7.0, CRI-O 1.24
)

// Health says how the node's GPUs are watched.
type Health struct {
	// ProbeInterval is the time between two looks at every GPU, and between
	// two looks for a driver or a GPU that is not there.
	ProbeInterval Duration `json:"probeInterval"`

	// QuietPeriod is how long a GPU must show no further fault until one that
	// may pass by itself is over.
	QuietPeriod Duration `json:"quietPeriod"`

	// CallTimeout is how long a call into the driver may take until the GPU
	// that it is about counts as unresponsive.
	CallTimeout Duration `json:"callTimeout"`

	XIDs XIDs `json:"xids"`
}

// XIDs overrides what single XIDs mean.
type XIDs struct {
	Ignore []int `json:"ignore"`
	Fatal  []int `json:"fatal"`
}

// Duration is a time.Duration that is written as Go writes it: "5s", "1m30s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Default is the config of a node whose file says nothing.
func Default() Config {
	return Config{
		APIVersion: APIVersion,
		Kind:       Kind,
		CDI:        CDI{Features: DefaultFeatures(), PassBy: []PassBy{ByField, ByAnnotation}},
		Health: Health{
			ProbeInterval: Duration(5 * time.Second),
			QuietPeriod:   Duration(time.Minute),
			CallTimeout:   Duration(30 * time.Second),
		},
	}
}

// Load reads the file at path; an empty path means the default. The error
// names everything that is wrong with the file.
func Load(path string) (Config, error) {
	if path == "" {
		return Default(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the config: %w", err)
	}
	cfg, err := Parse(data)
	if err != nil {
		return Config{}, fmt.Errorf("reading the config %s: %w", path, err)
	}
	return cfg, nil
}

// Parse reads a config on top of the default. A key that is not known is an
// error: a misspelled key that is silently ignored costs its author a night.
func Parse(data []byte) (Config, error) {
	cfg := Default()
	if err := yaml.UnmarshalStrict(data, &cfg); err != nil {
		return Config{}, err
	}
	return cfg, cfg.validate()
}

func (c Config) validate() error {
	var errs []error
	if c.APIVersion != APIVersion {
		errs = append(errs, fmt.Errorf("apiVersion is %q, want %q", c.APIVersion, APIVersion))
	}
	if c.Kind != Kind {
		errs = append(errs, fmt.Errorf("kind is %q, want %q", c.Kind, Kind))
	}
	if err := c.CDI.Features.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("cdi.features: %w", err))
	}
	if len(c.CDI.PassBy) == 0 {
		errs = append(errs, fmt.Errorf("cdi.passBy is empty: pods would start without their GPUs; name %q, %q or both", ByField, ByAnnotation))
	}
	for _, by := range c.CDI.PassBy {
		if !slices.Contains([]PassBy{ByField, ByAnnotation}, by) {
			errs = append(errs, fmt.Errorf("cdi.passBy has %q, want %q or %q", by, ByField, ByAnnotation))
		}
	}
	if d := time.Duration(c.Health.ProbeInterval); d < time.Second {
		errs = append(errs, fmt.Errorf("health.probeInterval is %s, want at least 1s", d))
	}
	if d := time.Duration(c.Health.QuietPeriod); d < 0 {
		errs = append(errs, fmt.Errorf("health.quietPeriod is %s, want 0s or more", d))
	}
	if d := time.Duration(c.Health.CallTimeout); d < time.Second {
		errs = append(errs, fmt.Errorf("health.callTimeout is %s, want at least 1s", d))
	}
	for _, xid := range c.Health.XIDs.Ignore {
		if slices.Contains(c.Health.XIDs.Fatal, xid) {
			errs = append(errs, fmt.Errorf("health.xids has %d in ignore and in fatal, want one of them", xid))
		}
	}
	return errors.Join(errs...)
}
