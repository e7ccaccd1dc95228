package agent

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

// Packages cdi and allocator agree on the names of variants.
func TestVariantNames(t *testing.T) {
	for _, f := range cdi.AllFeatures() {
		name := cdi.VariantName("GPU-a", f)
		if other := allocator.VariantName("GPU-a", string(f)); other != name || allocator.DeviceOfCDI(name) != "GPU-a" {
			t.Errorf("cdi names the variant %q, allocator %q of device %q; want equal names of GPU-a", name, other, allocator.DeviceOfCDI(name))
		}
	}
}

// A container with a variant holds its GPU.
func TestContainersHoldDevicesOfVariants(t *testing.T) {
	listed := &containers{requested: time.Now(), Containers: runtime.Containers{Devices: []runtime.ContainerDevice{
		{Pod: "pod", Device: cdi.AgentKind + "=GPU-a.graphics"},
	}}}
	observed := partResolver{inv: &gpu.Inventory{}}.runtime(listed)
	want := []allocator.Container{{Pod: "pod", Part: allocator.Part{GPU: "GPU-a", Extent: allocator.ExtentWhole}}}
	if !slices.Equal(observed.Containers, want) {
		t.Errorf("containers %+v, want %+v", observed.Containers, want)
	}
}

// Variants are maintained for the features of rules, after the start also for those that claims can select, and while their
// spec is on disk.
func TestWantedVariants(t *testing.T) {
	v := newVariants(Config{Node: host.NewRoot("/"), CDIDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	node := cdi.Features{cdi.Compute, cdi.Utility, cdi.Video}
	ruled := allocator.Policy{Rules: allocator.Rules{{Features: []string{"graphics", "video"}}}}
	for _, tc := range []struct {
		name   string
		claims bool
		policy allocator.Policy
		want   []cdi.Feature
	}{
		{"no rule", true, allocator.Policy{}, nil},
		{"rule", false, ruled, []cdi.Feature{cdi.Graphics, cdi.Video}},
		{"claims", true, allocator.Policy{Mode: allocator.ModeDRA}, []cdi.Feature{cdi.Graphics, cdi.Display}},
		{"claims, at the start", false, allocator.Policy{Mode: allocator.ModeDRA}, nil},
	} {
		v.claims = tc.claims
		if got := v.wanted(tc.policy, node); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if err := os.WriteFile(v.files[cdi.Display].Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := v.wanted(allocator.Policy{}, node); !slices.Equal(got, []cdi.Feature{cdi.Display}) {
		t.Errorf("with a spec on disk: %v", got)
	}
}

// A claim gets a feature from the node or from a verified variant. Otherwise, claimVariants returns the reason.
func TestVariantsOfClaims(t *testing.T) {
	p := &plan{
		parts: cdi.Parts{Features: cdi.Features{cdi.Compute, cdi.Video}},
		variants: map[cdi.Feature]variant{
			cdi.Graphics: {parts: cdi.Parts{Faults: map[string]gpu.Fault{"GPU-b": {Code: gpu.FaultDeviceNode, Message: "no DRM node"}}}},
			cdi.Display:  {fault: gpu.Fault{Code: gpu.FaultConfig, Message: "nvidia-modeset is not loaded"}},
		},
		verified: map[string]bool{cdi.AgentKind + "=GPU-a.graphics": true},
	}
	for _, tc := range []struct {
		id       string
		selected allocator.Features
		want     allocator.Features
		err      string
	}{
		{"GPU-a", "video", "", ""},
		{"GPU-a", "graphics,video", "graphics", ""},
		{"GPU-b", "graphics", "", "no DRM node"},
		{"GPU-a", "display,graphics", "", "nvidia-modeset is not loaded"},
		{"GPU-c", "graphics", "", "does not contain GPU-c.graphics"},
		{"GPU-a", "utility", "", "does not contain GPU-a.utility"},
		{"GPU-a", "opengl", "", `unknown feature "opengl"`},
	} {
		got, err := p.claimVariants(tc.id, tc.selected)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s with %s: %q, error %v; want %q, %q", tc.id, tc.selected, got, err, tc.want, tc.err)
		}
	}
}

// The variants that only claims can select are added by a reconcile after the start.
func TestVariantsOfClaimsAreAdded(t *testing.T) {
	a := New(Config{Node: host.NewRoot(t.TempDir()), CDIDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(allocator.NewGate(time.Now), a.newComputeLimits(nil, nil), nil, newTriggers(nil)), newSnapshot())
	l.config.Allocation.Mode = allocator.ModeDRA
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if step := l.await(ctx, newTriggers(nil)); step == nil || !l.variants.claims {
		t.Errorf("no step after the start; variants of claims are maintained: %t", l.variants.claims)
	}
}

// A feature that the driver lacks causes no reconcile until the driver has it, unless a rule selects the feature.
func TestMissingVariants(t *testing.T) {
	a := New(Config{Node: host.NewRoot(t.TempDir()), CDIDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(allocator.NewGate(time.Now), a.newComputeLimits(nil, nil), nil, newTriggers(nil)), newSnapshot())
	l.driver = &driver.Snapshot{}
	for name, tc := range map[string]struct {
		variant variant
		stale   bool
	}{
		"missing":             {variant{missing: true}, false},
		"missing, for a rule": {variant{missing: true, required: true}, true},
		"not written":         {variant{fault: gpu.Fault{Code: gpu.FaultSpec}}, true},
	} {
		l.plan = &plan{variants: map[cdi.Feature]variant{cdi.Graphics: tc.variant}}
		if got := l.variantsStale(); got != tc.stale {
			t.Errorf("%s: stale is %t, want %t", name, got, tc.stale)
		}
	}
}
