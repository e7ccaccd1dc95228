package dra

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
)

// deviceConfigOf returns a DeviceConfig with the fields in rest, which starts with a comma unless it is empty.
func deviceConfigOf(rest string) cluster.ClaimConfig {
	return cluster.ClaimConfig{Driver: testDriver, Parameters: json.RawMessage(`{"apiVersion":"gpucdi.dev/v1","kind":"DeviceConfig"` + rest + `}`)}
}

// The features of a DeviceClass and of its claims add up, and configurations of NVIDIA's kinds apply in addition.
func TestFeaturesOfClaims(t *testing.T) {
	graphics, display := deviceConfigOf(`,"features":["graphics","video"]`), deviceConfigOf(`,"features":["display","video"]`)
	class, other := graphics, graphics
	class.FromClass, other.Requests = true, []string{"other"}
	sliced := cluster.ClaimConfig{Driver: testDriver, Parameters: json.RawMessage(
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`)}
	for name, tc := range map[string]struct {
		config []cluster.ClaimConfig
		want   string // features, or a part of the error
	}{
		"none":                  {nil, ""},
		"claim":                 {[]cluster.ClaimConfig{graphics}, "graphics,video"},
		"class and claim":       {[]cluster.ClaimConfig{class, display}, "display,graphics,video"},
		"another request":       {[]cluster.ClaimConfig{other, display}, "display,video"},
		"another driver":        {[]cluster.ClaimConfig{{Driver: "other", Parameters: graphics.Parameters}}, ""},
		"with a time slice":     {[]cluster.ClaimConfig{graphics, sliced, display}, "display,graphics,video Long"},
		"no features":           {[]cluster.ClaimConfig{deviceConfigOf("")}, "error: config[0].opaque.parameters: no setting; set features or computeCeiling"},
		"empty":                 {[]cluster.ClaimConfig{deviceConfigOf(`,"features":[]`)}, "error: 0 features"},
		"too many":              {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["x"` + strings.Repeat(`,"x"`, 16) + `]`)}, "error: 17 features"},
		"a text":                {[]cluster.ClaimConfig{deviceConfigOf(`,"features":"graphics"`)}, "error: parameters.features: use a list of strings"},
		"numbers":               {[]cluster.ClaimConfig{deviceConfigOf(`,"features":[1]`)}, "error: use a list of strings"},
		"two in one name":       {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["graphics,display"]`)}, `error: "graphics,display"; use names`},
		"a path":                {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["../x"]`)}, `error: "../x"; use names`},
		"unprintable":           {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["\u001b[31m"]`)}, "error: use names"},
		"long":                  {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["` + strings.Repeat("x", 5000) + `"]`)}, "error: use names"},
		"unknown field":         {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["video"],"Features":["graphics"]`)}, "error: parameters.Features: not supported"},
		"error before the last": {[]cluster.ClaimConfig{deviceConfigOf(`,"x":1`), display}, "error: config[0]"},
		"another version":       {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: json.RawMessage(`{"apiVersion":"gpucdi.dev/v2","kind":"DeviceConfig"}`)}}, "error: DeviceConfig of gpucdi.dev/v1"},
		"large":                 {[]cluster.ClaimConfig{deviceConfigOf(`,"features":["` + strings.Repeat("x", maxParameters) + `"]`)}, "error: larger"},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.Claim{Config: tc.config}
			p, err := parametersFor(c, cluster.ClaimDevice{Request: "gpu", Driver: testDriver, Device: "gpu-0"})
			if want, refused := strings.CutPrefix(tc.want, "error: "); refused {
				if err == nil || !errors.Is(err, errUnsupported) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 500 {
					t.Errorf("error %v, want %q", err, want)
				}
				return
			}
			if got := strings.TrimSpace(string(p.features) + " " + string(p.timeSlice)); err != nil || got != tc.want {
				t.Errorf("features %q, error %v; want %q", got, err, tc.want)
			}
		})
	}
}

// The lowest ceiling of the class and the claim applies.
func TestComputeCeiling(t *testing.T) {
	class, claim := deviceConfigOf(`,"computeCeiling":50`), deviceConfigOf(`,"computeCeiling":80,"features":["video"]`)
	class.FromClass = true
	below := deviceConfigOf(`,"computeCeiling":20`)
	below.FromClass = true
	for name, tc := range map[string]struct {
		config []cluster.ClaimConfig
		want   int
		err    string
	}{
		"none":         {nil, 0, ""},
		"claim":        {[]cluster.ClaimConfig{claim}, 80, ""},
		"only class":   {[]cluster.ClaimConfig{class}, 25, ""},
		"class below":  {[]cluster.ClaimConfig{below}, 20, ""},
		"above class":  {[]cluster.ClaimConfig{class, claim}, 50, ""},
		"class second": {[]cluster.ClaimConfig{claim, class}, 50, ""},
		"zero":         {[]cluster.ClaimConfig{deviceConfigOf(`,"computeCeiling":0`)}, 0, "computeCeiling: 0; use an integer from 1 to 100"},
		"above 100":    {[]cluster.ClaimConfig{deviceConfigOf(`,"computeCeiling":101`)}, 0, "101; use an integer"},
		"a fraction":   {[]cluster.ClaimConfig{deviceConfigOf(`,"computeCeiling":0.5`)}, 0, "0.5; use an integer"},
		"a text":       {[]cluster.ClaimConfig{deviceConfigOf(`,"computeCeiling":"50"`)}, 0, `"50"; use an integer`},
		"no features":  {[]cluster.ClaimConfig{deviceConfigOf(`,"computeCeiling":50,"features":[]`)}, 0, "0 features"},
	} {
		p, err := parametersFor(cluster.Claim{Config: tc.config}, cluster.ClaimDevice{Request: "gpu", Driver: testDriver, Device: "gpu-0"})
		ceiling := p.ceilingOf(25)
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) || err == nil && ceiling != tc.want {
			t.Errorf("%s: ceiling %d, error %v; want %d and %q", name, ceiling, err, tc.want, tc.err)
		}
	}
}

// A claim with features gets variants of its CDI device, and the same ones after a restart of the agent. Another claim
// gets none.
func TestPrepareWithFeatures(t *testing.T) {
	n := newNode(t)
	lacking := errors.New("feature graphics: libEGL_nvidia.so.0 not found")
	var missing error
	n.cfg.Variants = func(_ string, selected allocator.Features) (allocator.Features, error) {
		names := slices.DeleteFunc(selected.Names(), func(name string) bool { return name == "video" }) // all containers have it
		return allocator.NewFeatures(names), missing
	}
	n.restart()
	graphics := allocated("a", "0")
	graphics.Config = []cluster.ClaimConfig{deviceConfigOf(`,"features":["video","graphics","display"]`)}
	n.claims.set("a", graphics)
	n.add("b", "1")
	want := []string{testKind + "=GPU-0.display", testKind + "=GPU-0.graphics"}
	for _, what := range []string{"first", "again", "after a restart", "while the driver lacks it"} {
		switch what {
		case "after a restart":
			n.restart()
		case "while the driver lacks it":
			missing = lacking
		}
		if got, err := n.prepare("a"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, error %v; want %v", what, got, err, want)
		}
		n.prepares("b", "1")
	}
	refused := allocated("c", "2")
	refused.Config = graphics.Config
	n.claims.set("c", refused)
	if _, err := n.prepare("c"); err == nil || !strings.Contains(err.Error(), lacking.Error()) {
		t.Errorf("error %v, want %q", err, lacking)
	}
	if last := n.observer.prepared[len(n.observer.prepared)-1]; last.Refusal != RefusedConfig {
		t.Errorf("refusal %q, want %q", last.Refusal, RefusedConfig)
	}
	n.recorded("uid-a", "uid-b")
}

// Shortly after a start, a variant may not be on disk yet. Prepare waits for it, because the kubelet would retry a
// refused claim only after a minute or more.
func TestPrepareWaitsForVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		available := time.Now().Add(3 * time.Second)
		n.cfg.Variants = func(_ string, selected allocator.Features) (allocator.Features, error) {
			if time.Now().Before(available) {
				return "", allocator.ErrHeld
			}
			return selected, nil
		}
		n.restart()
		graphics := allocated("a", "0")
		graphics.Config = []cluster.ClaimConfig{deviceConfigOf(`,"features":["graphics"]`)}
		n.claims.set("a", graphics)
		if got, err := n.prepare("a"); err != nil || !slices.Equal(got, []string{testKind + "=GPU-0.graphics"}) {
			t.Errorf("%v, error %v", got, err)
		}
		if took := time.Since(available); took < 0 || took > gatePoll {
			t.Errorf("prepared %s after the variant was available", took)
		}
	})
}
