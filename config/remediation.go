package config

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/gpu/health"
)

// Remediation configures the condition and the taint of the Node.
type Remediation struct {
	// Whether the Node has the condition NvidiaGPUHealthy.
	NodeCondition bool `yaml:"nodeCondition"`

	// Effect of the node taint gpucdi.dev/gpu-fault, whose value is the fault code.
	Taint NodeTaint `yaml:"taint"`

	// Time that a fault must last before the condition is False and the Node is tainted. When the
	// fault ends, the condition returns to True and the taint is removed immediately. If this
	// time is longer than health.quietPeriod, faults that need no repair usually end before it has
	// passed.
	After time.Duration `yaml:"after"`

	// Fault codes of docs/health.md except config, foreign_holder, cordoned and mps, or reset, fatal or
	// transient for the XIDs of that class. Other faults affect neither condition nor taint.
	Faults []health.Selector `yaml:"faults"`
}

// NodeTaint is the effect of the node taint.
type NodeTaint string

// The effects of the node taint.
const (
	NodeTaintNone             NodeTaint = "none"             // no taint
	NodeTaintPreferNoSchedule NodeTaint = "PreferNoSchedule" // new pods only if no other node has room
	NodeTaintNoSchedule       NodeTaint = "NoSchedule"       // no new pods
	NodeTaintNoExecute        NodeTaint = "NoExecute"        // no new pods, and evicts all that do not tolerate it
)

// Enabled reports whether the condition or the taint is enabled.
func (r Remediation) Enabled() bool { return r.NodeCondition || r.Taint != NodeTaintNone }

func (r Remediation) validate() error {
	var errs []error
	effects := []NodeTaint{NodeTaintNone, NodeTaintPreferNoSchedule, NodeTaintNoSchedule, NodeTaintNoExecute}
	if !slices.Contains(effects, r.Taint) {
		errs = append(errs, fmt.Errorf("remediation.taint: want %s, got %q", oneOf(effects), r.Taint))
	}
	if r.After < 0 {
		errs = append(errs, fmt.Errorf("remediation.after: want at least 0s, got %s", r.After))
	}
	if r.Enabled() && len(r.Faults) == 0 {
		errs = append(errs, errors.New("remediation.faults: want at least one fault while nodeCondition or taint is set, got none; without the key, the default applies"))
	}
	for i, s := range r.Faults {
		errs = append(errs, prefixLines(fmt.Sprintf("remediation.faults[%d]: ", i), s.Validate()))
	}
	return errors.Join(errs...)
}
