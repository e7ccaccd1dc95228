package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
)

// variants maintains the CDI specs of variants. A variant of a CDI device adds one feature to the features of the node.
// Specs are never removed, because pods may hold a variant that no rule selects any more.
type variants struct {
	log    *slog.Logger
	files  map[cdi.Feature]*cdi.File
	logged map[cdi.Feature]string // latest fault, already logged; empty if none

	// claims is whether to maintain the variants that only claims can select. They would delay the start, so the loop sets
	// it when started fires, after startDelay. A claim that selects such a variant before waits for it.
	claims  bool
	started <-chan time.Time
}

func newVariants(cfg Config, log *slog.Logger) variants {
	v := variants{log: log, files: map[cdi.Feature]*cdi.File{}, logged: map[cdi.Feature]string{}, started: time.After(startDelay)}
	for _, f := range cdi.AllFeatures() {
		v.files[f] = cdi.VariantFile(f, cfg.CDIDir, cfg.Node)
	}
	return v
}

// wanted returns the features of the variants to maintain: features that rules select, features that claims can select
// in addition to the features of the node, and features with a spec on disk.
func (v *variants) wanted(p allocator.Policy, node cdi.Features) (features []cdi.Feature) {
	for _, f := range cdi.AllFeatures() {
		_, err := os.Lstat(v.files[f].Path)
		if p.SelectsFeature(string(f)) || v.claims && p.UsesDRA() && !node.Any(f) || err == nil {
			features = append(features, f)
		}
	}
	return features
}

// variant is the plan for the variants of one feature.
type variant struct {
	parts    cdi.Parts
	fault    gpu.Fault // of all variants of the feature
	missing  bool      // the driver lacks the feature
	required bool      // a rule selects the feature
}

// specsStale reports whether the specs of GPUs have to be written.
func (l *loop) specsStale() bool { return l.spec.Stale() || l.variantsStale() }

// filesChanged reports whether files that the specs depend on may have changed between their inspection and the write.
func (l *loop) filesChanged() bool {
	for f := range l.plan.variants {
		if l.variants.files[f].Changed() {
			return true
		}
	}
	return l.spec.Changed()
}

// variantsStale reports whether specs of variants have to be written, because they or files that they depend on
// changed. A missing feature that no rule selects causes no reconcile until the driver has it, because the driver may
// lack it permanently.
func (l *loop) variantsStale() bool {
	for f, v := range l.plan.variants {
		if v.missing && !v.required {
			if _, err := cdi.Inspect(l.cfg.Node, l.driver.Driver, l.known, withFeature(l.plan.parts.Features, f)); err == nil {
				return true
			}
		} else if l.variants.files[f].Stale() {
			return true
		}
	}
	return false
}

func withFeature(node cdi.Features, f cdi.Feature) cdi.Features {
	return slices.Concat(node, cdi.Features{f})
}

// inspectVariants returns the plan for the variants of the wanted features. A feature that the driver lacks has a
// fault.
func (l *loop) inspectVariants(ctx context.Context, node cdi.Features) map[cdi.Feature]variant {
	policy, inspected := l.config.Policy(), map[cdi.Feature]variant{}
	for _, f := range l.variants.wanted(policy, node) {
		v := variant{required: policy.SelectsFeature(string(f))}
		var err error
		if v.parts, err = l.inspectHost(ctx, withFeature(node, f), v.required); err != nil {
			v.missing = true
			v.fault = gpu.Fault{Code: gpu.FaultConfig, Message: fmt.Sprintf("feature %s: %s", f, gpu.OneLine(err))}
		}
		inspected[f] = v
	}
	return inspected
}

// putVariants writes and verifies the specs of the variants, and updates the plan.
func (l *loop) putVariants(p *plan) {
	p.variants = maps.Clone(p.variants) // earlier plans share it
	for f, v := range p.variants {
		if v.fault.None() {
			if err := l.variants.put(f, p, v.parts); err != nil {
				v.fault = gpu.Fault{Code: gpu.FaultSpec, Message: gpu.OneLine(err)}
				p.variants[f] = v
			}
		}
		l.variants.logFault(f, v.fault)
	}
}

func (v *variants) put(f cdi.Feature, p *plan, parts cdi.Parts) error {
	spec, err := cdi.BuildVariants(f, p.inventory, parts)
	if err != nil {
		return err
	}
	written, err := v.files[f].Put(spec)
	if written {
		v.log.Info("CDI spec written", "path", v.files[f].Path, "devices", len(spec.Devices))
	}
	if err == nil {
		p.verify(cdi.QualifiedNames(spec))
	}
	return err
}

// logFault logs the fault of a feature unless it is the same as at the last write.
func (v *variants) logFault(f cdi.Feature, fault gpu.Fault) {
	if !fault.None() && fault.Message != v.logged[f] {
		v.log.Warn("driver capability unavailable", "feature", f, "reason", fault.Message)
	}
	v.logged[f] = fault.Message
}

// variantFaults returns the faults of the variants of GPUs and MIG devices, by name.
func (p *plan) variantFaults() map[string]gpu.Fault {
	faults := map[string]gpu.Fault{}
	for f, v := range p.variants {
		for uuid := range p.parts.GPUs {
			if fault := cmp.Or(v.fault, v.parts.Faults[uuid]); !fault.None() {
				faults[cdi.VariantName(uuid, f)] = fault
			}
		}
	}
	return faults
}

// claimVariants implements dra.Config.Variants.
func (p *plan) claimVariants(id string, selected allocator.Features) (allocator.Features, error) {
	var needed []string
	for _, name := range selected.Names() {
		f := cdi.Feature(name)
		if err := (cdi.Features{f}).Validate(); err != nil {
			return "", err
		}
		if p.parts.Features.Any(f) {
			continue
		}
		if fault := cmp.Or(p.variants[f].fault, p.variants[f].parts.Faults[id]); !fault.None() {
			return "", errors.New(fault.String())
		}
		if !p.verified[cdi.AgentKind+"="+cdi.VariantName(id, f)] {
			return "", fmt.Errorf("%w: feature %s: the CDI spec does not contain %s", allocator.ErrHeld, f, cdi.VariantName(id, f))
		}
		needed = append(needed, name)
	}
	return allocator.NewFeatures(needed), nil
}
