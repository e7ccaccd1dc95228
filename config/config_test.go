package config_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/kubelet"
)

// parse returns what a file says for a node.
func parse(t *testing.T, text string, node config.Node) config.Config {
	t.Helper()
	file, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := file.For(node)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestParse(t *testing.T) {
	got := parse(t, "cdi: {features: [video, display], passBy: [annotation]}\nmig: {strategy: mixed}\nresources: [{name: nvidia.com/gpu, replicas: 4}]\nhealth: {probeInterval: 1m30s}\n", config.Node{})
	want := config.Default()
	want.CDI.Features = cdi.Features{cdi.Video, cdi.Display}
	want.CDI.PassBy = []kubelet.PassBy{kubelet.ByAnnotation}
	want.MIG.Strategy = allocator.MIGMixed
	want.Health.ProbeInterval = 90 * time.Second
	want.Resources = allocator.Rules{{Name: "nvidia.com/gpu", Replicas: 4}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestEveryKeyIsOptional(t *testing.T) {
	for _, text := range []string{"", "# nothing", "nodes: []"} {
		if got := parse(t, text, config.Node{}); !reflect.DeepEqual(got, config.Default()) {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func TestSections(t *testing.T) {
	const text = `
cdi: {passBy: [field]}
health: {xids: {ignore: [1]}}
resources: [{name: nvidia.com/gpu, replicas: 4}, {name: nvidia.com/mig-1g.5gb, replicas: 2}]
nodes:
- names: [a, b]
  health: {xids: {fatal: [2]}}
- section: patient
  health: {callTimeout: 1m}
- selector: gpu.family in (hopper, blackwell), !spot
  cdi: {features: [video]}
- names: [b]
  health: {callTimeout: 2m, xids: {ignore: []}}
  resources: [{name: nvidia.com/gpu, replicas: 2}]
`
	for _, tc := range []struct {
		node config.Node
		want func(*config.Config)
	}{
		{config.Node{}, func(*config.Config) {}},
		{config.Node{Name: "c", Labels: map[string]string{"gpu.family": "hopper", "spot": ""}}, func(*config.Config) {}},
		{config.Node{Name: "a"}, func(c *config.Config) { c.Health.XIDs.Fatal = []int{2} }},
		{config.Node{Labels: map[string]string{config.SectionLabel: "patient"}}, func(c *config.Config) { c.Health.CallTimeout = time.Minute }},
		{config.Node{Labels: map[string]string{"gpu.family": "hopper"}}, func(c *config.Config) { c.CDI.Features = cdi.Features{cdi.Video} }},
		{config.Node{Name: "b", Labels: map[string]string{config.SectionLabel: "patient"}}, func(c *config.Config) {
			c.Health.XIDs = config.XIDs{Ignore: []int{}, Fatal: []int{2}}
			c.Health.CallTimeout = 2 * time.Minute
			c.Resources = allocator.Rules{{Name: "nvidia.com/gpu", Replicas: 2}}
		}},
	} {
		want := config.Default()
		want.CDI.PassBy = []kubelet.PassBy{kubelet.ByField}
		want.Health.XIDs.Ignore = []int{1}
		want.Resources = allocator.Rules{{Name: "nvidia.com/gpu", Replicas: 4}, {Name: "nvidia.com/mig-1g.5gb", Replicas: 2}}
		tc.want(&want)
		if got := parse(t, text, tc.node); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: got %+v, want %+v", tc.node, got, want)
		}
	}
}

// Sections that are right each can contradict each other.
func TestSectionsAreJudgedTogether(t *testing.T) {
	file, err := config.Parse([]byte(`
nodes:
- {names: [a, b], health: {xids: {ignore: [79]}}}
- {names: [b, c], health: {xids: {fatal: [79]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, right := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, err := file.For(config.Node{Name: name}); (err == nil) != right {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseNamesEveryProblemAtOnce(t *testing.T) {
	_, err := config.Parse([]byte(`
apiVersion: v2
kind: Node
cdi: {features: [compute, gaming, raytracing], classes: [nvswitch], passBy: [hook], hook: ./hook}
mig: {strategy: both}
cid: {}
labels: {place: there}
resources:
- {name: nvidia.com/gpus, replicas: 1000000}
- {name: nvidia.com/mig-1g.5gb, replicas: many}
- {name: nvidia.com/mig-1g.5gb, replicas: 2, as: x, rename: nvidia.com/part}
health: {probeInterval: 1ms, quietPeriod: -1s, callTimeout: often, xids: {ignore: [79, x], fatal: [48, 79]}}
nodes:
- cdi: {passBy: []}
- resources: [{name: nvidia.com/gpu, replicas: 1}]
- names: [a]
  selector: in in (in
  health: {quietPeriod: 5, quiet: 1s}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{`"v2"`, `"Node"`, `"gaming"`, `"raytracing"`, `"nvswitch"`, `"hook"`, `"./hook"`, "cid", `"both"`, `"there"`, "1ms", "-1s", "often", "79",
		`resources[0]: name is "nvidia.com/gpus"`, "replicas is 1000000", "line 11", "resources[2]: nvidia.com/mig-1g.5gb is there twice", `"nvidia.com/mig-1g.5gb.shared", or nothing`, "field as not found",
		"nodes[0]: cdi.passBy is empty", "it holds on no node", "nodes[1]: resources[0]: replicas is 1", "nodes[2]", "selector", "line 18", "field quiet not found"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %s: %v", part, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"an unknown key":               "cdi: {pasBy: [field]}",
		"a key given twice":            "kind: NodeConfig\nkind: NodeConfig",
		"a second document":            "kind: NodeConfig\n---\ncdi: {passBy: [field]}",
		"a profile in NVML's spelling": "resources: [{name: nvidia.com/mig-1g.5gb+me, replicas: 2}]",
		"a resource without replicas":  "resources: [{name: nvidia.com/gpu}]",
		"no way to pass":               "cdi: {passBy: []}",
		"no feature":                   "cdi: {features: []}",
		"a bare number":                "health: {probeInterval: 5}",
		"text for a duration":          "health: {probeInterval: often}",
		"sections of sections":         "nodes: [{names: [a], nodes: []}]",
		"no YAML":                      "cdi: {",
	} {
		if file, err := config.Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, file)
		}
	}
}

func TestLacks(t *testing.T) {
	file, err := config.Parse([]byte("nodes: [{section: a}, {names: [b]}]"))
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"": "", "a": "", "b": "b"} {
		if got := file.Lacks(config.Node{Labels: map[string]string{config.SectionLabel: label}}); got != want {
			t.Errorf("%q: %q is lacking, want %q", label, got, want)
		}
	}
}

func TestByLabels(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "nodes: [{names: [a]}]": false, "nodes: [{section: a}]": true, "nodes: [{names: [a]}, {selector: b}]": true,
	} {
		file, err := config.Parse([]byte(text))
		if err != nil || file.ByLabels() != want {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("cdi: {passBy: [field]}"))
	f.Add([]byte("nodes: [{names: [a], cdi: {passBy: [field]}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := config.Parse(data)
		if err != nil {
			return
		}
		for _, name := range []string{"", "a"} {
			cfg, err := file.For(config.Node{Name: name})
			if err == nil && (len(cfg.CDI.Features) == 0 || len(cfg.CDI.PassBy) == 0 || cfg.Health.ProbeInterval <= 0) {
				t.Errorf("accepted %+v", cfg)
			}
		}
	})
}
