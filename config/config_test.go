package config_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/kubelet"
)

// effective parses a file and returns the effective config of a node.
func effective(t *testing.T, text string, node config.Node) config.Config {
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
	got := effective(t, `
cdi: {features: [video, display], passBy: [annotation]}
allocation: {mode: dra}
shares: {memoryScaling: 0.9, reserve: 512Mi, placement: spread}
mig: {strategy: mixed}
resources: [{name: nvidia.com/gpu, share: memory, level: any}]
health: {probeInterval: 1m30s}
`, config.Node{})
	want := config.Default()
	want.CDI.Features = cdi.Features{cdi.Video, cdi.Display}
	want.CDI.PassBy = []kubelet.PassBy{kubelet.ByAnnotation}
	want.MIG.Strategy = allocator.MIGMixed
	want.Health.ProbeInterval = 90 * time.Second
	want.Allocation.Mode = allocator.ModeDRA
	want.Shares = allocator.Shares{MemoryScaling: 0.9, Reserve: "512Mi", Placement: allocator.Spread, Compute: allocator.ComputeTimeSlice, MaxCeiling: 100}
	want.Resources = allocator.Rules{{Name: "nvidia.com/gpu", Share: allocator.ShareMemory, Level: allocator.LevelAny}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseDefault(t *testing.T) {
	for _, text := range []string{"", "# comment", "nodes: []"} {
		if got := effective(t, text, config.Node{}); !reflect.DeepEqual(got, config.Default()) {
			t.Errorf("%q: got %+v, want the default", text, got)
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
		{labeled("gpu.family", "hopper", "spot", ""), func(*config.Config) {}},
		{config.Node{Name: "a"}, func(c *config.Config) { c.Health.XIDs.Fatal = []int{2} }},
		{labeled(config.SectionLabel, "patient"), func(c *config.Config) { c.Health.CallTimeout = time.Minute }},
		{labeled("gpu.family", "hopper"), func(c *config.Config) { c.CDI.Features = cdi.Features{cdi.Video} }},
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
		if got := effective(t, text, tc.node); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: got %+v, want %+v", tc.node, got, want)
		}
	}
}

// labeled returns a node with labels. pairs alternates keys and values.
func labeled(pairs ...string) config.Node {
	node := config.Node{Labels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		node.Labels[pairs[i]] = pairs[i+1]
	}
	return node
}

func TestForRejectsContradictingSections(t *testing.T) {
	file, err := config.Parse([]byte(`
nodes:
- {names: [a, b], health: {xids: {ignore: [79]}}}
- {names: [b, c], health: {xids: {fatal: [79]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, valid := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, err := file.For(config.Node{Name: name}); (err == nil) != valid {
			t.Errorf("%s: error %v, want valid: %t", name, err, valid)
		}
	}
}

func TestParseReportsEveryProblem(t *testing.T) {
	_, err := config.Parse([]byte(`apiVersion: v2
kind: Node
cdi: {features: [compute, gaming, raytracing], classes: [nvswitch, gpu], passBy: [hook], hook: ./hook}
mig: {strategy: both}
cid: {}
labels: {place: there}
resources:
- {name: nvidia.com/gpus, replicas: 1000000}
- {name: nvidia.com/mig-1g.5gb, replicas: many}
- {name: nvidia.com/mig-1g.5gb, replicas: 2, as: x, rename: nvidia.com/part}
health: {probeInterval: 1ms, quietPeriod: -1s, callTimeout: often, xids: {ignore: [79, x], fatal: [48, 79]}}
nodes:
- cdi: {passBy: [], features: [gaming2, raytracing2]}
- resources: [{name: nvidia.com/gpu, replicas: 1}]
- names: [a]
  selector: in in (in
  health: {quietPeriod: 5, quiet: 1s}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	want := []string{
		`apiVersion: want gpucdi.dev/v1, got "v2"`,
		`kind: want NodeConfig, got "Node"`,
		`cdi.features: unknown feature "gaming"`,
		`cdi.features: unknown feature "raytracing"`,
		`cdi.classes: class "nvswitch" cannot be injected`,
		`cdi.classes: class "gpu" cannot be injected`,
		`cdi.passBy[0]: want field or annotation, got "hook"`,
		`cdi.hook: want an absolute path on the node, got "./hook"`,
		`mig.strategy: want none, single or mixed, got "both"`,
		`cid: unknown key (line 5)`,
		`labels.place: want node, nfd or none, got "there"`,
		`resources[0].name: want nvidia.com/gpu or nvidia.com/mig-<profile> with . for +, got "nvidia.com/gpus"`,
		`resources[0].replicas: want 2 to 20000, got 1000000; remove the resource`,
		`resources[1].replicas: want an integer, got "many" (line 9)`,
		`resources[2].name: want one rule without select for each resource, got another for "nvidia.com/mig-1g.5gb"`,
		`resources[2].as: unknown key (line 10)`,
		`resources[2].rename: want "nvidia.com/mig-1g.5gb.shared" or nothing, got "nvidia.com/part"`,
		`health.probeInterval: want at least 1s, got 1ms`,
		`health.quietPeriod: want at least 0s, got -1s`,
		`health.callTimeout: want a duration such as 5s, got "often" (line 11)`,
		`health.xids.ignore[1]: want an integer, got "x" (line 11)`,
		`health.xids: want each XID in ignore or in fatal, got 79 in both`,
		`nodes[0]: want section, names or selector, got none`,
		`nodes[0].cdi.features: unknown feature "gaming2"`,
		`nodes[0].cdi.features: unknown feature "raytracing2"`,
		`nodes[0].cdi.passBy: want field, annotation or both, got none`,
		`nodes[1]: want section, names or selector, got none`,
		`nodes[1].resources[0].replicas: want 2 to 20000, got 1;`,
		`nodes[2].selector: want a label selector, got "in in (in": `,
		`nodes[2].health.quietPeriod: want a duration such as 5s, got 5 (line 17)`,
		`nodes[2].health.quiet: unknown key (line 17)`,
	}
	want = append(want, `resources[1].replicas: want 2 to 20000, got 0; `) // since "many" is not decoded
	lines := strings.Split(err.Error(), "\n")
	for _, prefix := range want {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, prefix) }) {
			t.Errorf("no problem %q in\n%v", prefix, err)
		}
	}
	for _, line := range lines {
		if !slices.ContainsFunc(want, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			t.Errorf("unexpected problem %q", line)
		}
	}
}

// The decoder omits items that are not mappings, so the index of the next item is unknown to the validation.
func TestParseIndexes(t *testing.T) {
	_, err := config.Parse([]byte("nodes: [x, {cdi: {passBy: []}}]\n---\n"))
	want := `nodes[0]: want a mapping, got "x" (line 1)` + "\nwant one YAML document, got several"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// Errors of the base neither hide those of sections, nor cause others, nor are repeated for each section.
func TestParseSectionsOfInvalidBase(t *testing.T) {
	_, err := config.Parse([]byte(`
labels: {place: nowhere}
allocation: {mode: dra}
health: {xids: {ignore: [31]}}
nodes:
- {names: [a], resources: [{name: nvidia.com/gpu, share: memory, level: any}]}
- {names: [b], health: {xids: {fatal: [31]}}}
`))
	want := `labels.place: want node, nfd or none, got "nowhere"` + "\nnodes[1].health.xids: want each XID in ignore or in fatal, got 31 in both"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

func TestParseRejects(t *testing.T) {
	for text, want := range map[string]string{
		"cdi: {pasBy: [field]}":                     "cdi.pasBy: unknown key (line 1)",
		"kind: NodeConfig\nkind: NodeConfig":        "kind: duplicate key (line 2)",
		"cdi: {hook: /a, hook: /b}":                 "cdi.hook: duplicate key (line 1)",
		"kind: NodeConfig\n---\ncdi: {hook: /a}":    "want one YAML document, got several",
		"nodes: [~, {names: [a]}]":                  "nodes[0]: want a mapping, got nothing (line 1)",
		"nodes:\n- names: [a]\n-":                   "nodes[1]: want a mapping, got nothing (line 3)",
		"nodes: [{names: [a, ~]}]":                  "nodes[0].names[1]: want a string, got nothing (line 1)",
		"resources: [~]":                            "resources[0]: want a mapping, got nothing (line 1)",
		"nodes: [{names: [a], nodes: []}]":          "nodes[0].nodes: unknown key (line 1)",
		"health: {probeInterval: 5}":                "health.probeInterval: want a duration such as 5s, got 5 (line 1)",
		"health: {probeInterval: often}":            `health.probeInterval: want a duration such as 5s, got "often" (line 1)`,
		"health: {probeInterval: [1s]}":             "health.probeInterval: want a duration such as 5s, got a list (line 1)",
		"health: 5s":                                `health: want a mapping, got "5s" (line 1)`,
		"resources: {name: nvidia.com/gpu}":         "resources: want a list, got a mapping (line 1)",
		"cdi: {hook: [/a]}":                         "cdi.hook: want a string, got a list (line 1)",
		"[]":                                        "document: want a mapping, got a list (line 1)",
		"mig: {strategy: x}":                        `mig.strategy: want none, single or mixed, got "x"`,
		"cdi: {passBy: []}":                         "cdi.passBy: want field, annotation or both, got none; pods would start",
		"cdi: {features: [cuda]}":                   `cdi.features: unknown feature "cuda"; supported features: `,
		"resources: [{name: nvidia.com/gpu}]":       "resources[0].replicas: want 2 to 20000, got 0; remove the",
		"shares: {memoryScaling: 0}":                `shares.memoryScaling: want a number above 0 and at most 1, got 0`,
		"shares: {memoryScaling: .nan}":             `shares.memoryScaling: want a number above 0 and at most 1, got NaN`,
		"shares: {memoryScaling: half}":             `shares.memoryScaling: want a number, got "half" (line 1)`,
		"shares: {reserve: 1GB}":                    `shares.reserve: want a size such as 512Mi, or 0, got "1GB"`,
		"shares: {reserve: 1}":                      `shares.reserve: want a size such as 512Mi, or 0, got "1"`,
		"shares: {placement: random}":               `shares.placement: want pack or spread, got "random"`,
		"shares: {compute: sm}":                     `shares.compute: want timeslice or ceiling, got "sm"`,
		"allocation: {mode: both}":                  `allocation.mode: want devicePlugin or dra, got "both"`,
		"allocation: {taintEffect: None}":           `allocation.taintEffect: want NoSchedule or NoExecute, got "None"`,
		"allocation: {respectForeignContainers: 1}": "allocation.respectForeignContainers: want true or false, got 1",
		"resources: [{name: nvidia.com/mig-1g.5gb+me, replicas: 2}]": "resources[0].name: want nvidia.com/gpu or " +
			`nvidia.com/mig-<profile> with . for +, got "nvidia.com/mig-1g.5gb+me"`,
		"cdi: &c {hook: 1s}\nhealth: *c":                  "health.hook: unknown key (line 1)",
		"nodes: [{names: [a], health: {<<: {quiet: 1}}}]": "nodes[0].health.quiet: unknown key (line 1)",
		"health: {probeInterval: " + strings.Repeat("x", 1000) + "}": "health.probeInterval: want a duration such as 5s, got " +
			`"` + strings.Repeat("x", 64) + `"… (line 1)`,
		"cdi: {": "yaml: line 1: ",
	} {
		if _, err := config.Parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80s: error %q, want %q", text, err, want)
		}
	}
}

func TestParseRejectsRules(t *testing.T) {
	for rule, want := range map[string]string{
		"{select: {product: H100}}":                                                                       ": want name, mode, replicas, share, features or exclude, got none",
		"{select: {product: '['}, name: a.com/b}":                                                         `.select.product: want a glob, got "["`,
		"{select: {product: H100, vendor: x}, name: a.com/b}":                                             ".select.vendor: unknown key (line 1)",
		"{select: {memory: 16Gi}, name: a.com/b}":                                                         `.select.memory: want comparisons such as ">=16Gi, <40Gi", got "16Gi": "16Gi" has no operator`,
		"{select: {memory: '>16GB'}, name: a.com/b}":                                                      `.select.memory: want comparisons such as ">=16Gi, <40Gi", got ">16GB": ">16GB" has an invalid value`,
		"{select: {memory: '>0x1p4Gi'}, name: a.com/b}":                                                   `.select.memory: want comparisons such as ">=16Gi, <40Gi", got ">0x1p4Gi": ">0x1p4Gi" has an invalid value`,
		"{select: {memory: '>NaNGi'}, name: a.com/b}":                                                     `.select.memory: want comparisons such as ">=16Gi, <40Gi", got ">NaNGi": ">NaNGi" has an invalid value`,
		"{select: {memory: '>InfGi'}, name: a.com/b}":                                                     `.select.memory: want comparisons such as ">=16Gi, <40Gi", got ">InfGi": ">InfGi" has an invalid value`,
		"{select: {computeCapability: '>=8.x'}, name: a.com/b}":                                           `.select.computeCapability: want comparisons such as ">=8.0", got ">=8.x": ">=8.x" has an invalid value`,
		"{select: {index: [-1]}, name: a.com/b}":                                                          ".select.index: want at least 0, got -1",
		"{select: {index: [one]}, name: a.com/b}":                                                         `.select.index[0]: want an integer, got "one" (line 1)`,
		"{select: {uuid: []}, exclude: true}":                                                             ".select: want at least one value in index, uuid and pci, got an empty list",
		"{select: {index: [0]}, name: gpu}":                                                               `.name: want a resource name such as nvidia.com/h100, got "gpu": it has no domain`,
		"{select: {index: [0]}, name: kubernetes.io/gpu}":                                                 `.name: want a resource name such as nvidia.com/h100, got "kubernetes.io/gpu": its domain is reserved`,
		"{select: {index: [0]}, name: mykubernetes.io/gpu}":                                               `.name: want a resource name such as nvidia.com/h100, got "mykubernetes.io/gpu": its domain is reserved`,
		"{select: {index: [0]}, name: requests.a.com/gpu}":                                                `.name: want a resource name such as nvidia.com/h100, got "requests.a.com/gpu": its domain starts with requests.`,
		"{select: {index: [0]}, name: 'a.com/b c'}":                                                       `.name: want a resource name such as nvidia.com/h100, got "a.com/b c": name part must consist of`,
		"{select: {index: [0]}, name: a.com/" + strings.Repeat("b", 64) + "}":                             `.name: want a resource name such as nvidia.com/h100, got "a.com/bbb`,
		"{select: {index: [0]}, name: a.com/b, rename: a.com/b.shared, replicas: 2}":                      ".rename: want name instead, since the rule has select",
		"{select: {index: [0]}, name: a.com/b, replicas: 1}":                                              ".replicas: want 2 to 20000, got 1; remove the key",
		"{select: {index: [0]}, name: a.com/b, failRequestsGreaterThanOne: true}":                         ".failRequestsGreaterThanOne: want replicas",
		"{select: {index: [0]}, name: a.com/b, limits: memory}":                                           ".limits: want replicas",
		"{select: {index: [0]}, replicas: 2, limits: cores}":                                              `.limits: want memory, memory+compute or nothing, got "cores"`,
		"{select: {index: [0]}, replicas: 2, limits: memory+compute}":                                     ".failRequestsGreaterThanOne: want true with limits: memory+compute",
		"{select: {index: [0]}, replicas: 101, limits: memory+compute, failRequestsGreaterThanOne: true}": ".replicas: want at most 100 with limits: memory+compute, got 101",
		"{select: {index: [0]}, replicas: 2, limits: memory, level: none}":                                `.level: want any or nothing, got "none"`,
		"{select: {index: [0]}, replicas: 2, level: any}":                                                 ".level: want limits",
		"{select: {index: [0]}, exclude: true, level: any}":                                               ".exclude: want no other key but select",
		"{select: {index: [0]}, mode: dra, replicas: 2, limits: memory}":                                  ": want share in mode dra, or mode devicePlugin with replicas, rename and limits",
		"{select: {index: [0]}, mode: dra, share: cores}":                                                 `.share: want memory, replicas or nothing, got "cores"`,
		"{select: {index: [0]}, share: memory}":                                                           ".share: want mode dra, got devicePlugin; in that mode, use replicas",
		"{select: {index: [0]}, mode: dra, share: replicas}":                                              ".replicas: want the number of claims that can share each device, got none",
		"{select: {index: [0]}, mode: dra, share: memory, replicas: 2}":                                   ".share: want neither replicas nor limits with memory",
		"{select: {index: [0]}, mode: dra, share: replicas, replicas: 2, limits: memory}":                 ".limits: want share: memory, since replicas of claims have no limits",
		"{name: nvidia.com/gpu, mode: dra, share: replicas, replicas: 2, rename: nvidia.com/gpu.shared}":  ".share: want neither rename nor failRequestsGreaterThanOne",
		"{select: {index: [0]}, exclude: true, share: memory}":                                            ".exclude: want no other key but select",
		"{select: {index: [0]}, name: a.com/b, exclude: true}":                                            ".exclude: want no other key but select",
		"{select: {index: [0]}, exclude: true, features: [video]}":                                        ".exclude: want no other key but select",
		"{select: {index: [0]}, features: [video, x]}":                                                    `.features: unknown feature "x"; supported features: `,
		"{select: {index: [0]}, mode: dra, features: [video]}":                                            ": want mode devicePlugin with features, got dra",
		"{exclude: true}": `.name: want nvidia.com/gpu or nvidia.com/mig-<profile> with . for +, got ""; set select for other names`,
		"{name: nvidia.com/gpu, features: [video], rename: nvidia.com/gpu.shared}": ".rename: want replicas",
		"{name: 'nvidia.com/mig-1g 5gb', replicas: 2}":                             ".name: want a resource name such as nvidia.com/h100",
	} {
		if _, err := config.Parse([]byte("resources: [" + rule + "]")); err == nil || !strings.HasPrefix(err.Error(), "resources[0]"+want) {
			t.Errorf("%s: error %q, want %q", rule, err, "resources[0]"+want)
		}
	}
}

func TestParseHintsForKeysOfNVIDIAPlugin(t *testing.T) {
	_, err := config.Parse([]byte(`version: v1
flags: {migStrategy: single}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
`))
	const want = `version: unknown key (line 1); use apiVersion: gpucdi.dev/v1
flags: unknown key (line 2); use mig.strategy for flags.migStrategy, and docs/moving.md for other flags
sharing: unknown key (line 3); use resources for sharing.timeSlicing.resources, with limits: memory+compute for sharing.mps.resources`
	if err == nil || err.Error() != want {
		t.Errorf("got error\n%v\nwant\n%s", err, want)
	}
}

func TestMissingSection(t *testing.T) {
	file, err := config.Parse([]byte("nodes: [{section: a}, {names: [b]}]"))
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"": "", "a": "", "b": "b"} {
		if got := file.MissingSection(config.Node{Labels: map[string]string{config.SectionLabel: label}}); got != want {
			t.Errorf("label %q: got %q, want %q", label, got, want)
		}
	}
}

func TestSelectsByLabel(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "nodes: [{names: [a]}]": false, "nodes: [{section: a}]": true, "nodes: [{names: [a]}, {selector: b}]": true,
	} {
		file, err := config.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := file.SelectsByLabel(); got != want {
			t.Errorf("%q: got %t, want %t", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("cdi: {passBy: [field]}"))
	f.Add([]byte("nodes: [{names: [a], cdi: {passBy: [field]}}]"))
	f.Add([]byte("cdi: &a {hook: [*a], hook: x}\nhealth: {<<: [*a, *a]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := config.Parse(data)
		if err != nil {
			if strings.Contains(err.Error(), "cannot unmarshal") || strings.Contains(err.Error(), "in type") {
				t.Errorf("the error names Go types: %v", err)
			}
			return
		}
		for _, name := range []string{"", "a"} {
			cfg, err := file.For(config.Node{Name: name})
			if err == nil && (len(cfg.CDI.PassBy) == 0 || cfg.Health.ProbeInterval <= 0) {
				t.Errorf("accepted %+v", cfg)
			}
		}
	})
}
