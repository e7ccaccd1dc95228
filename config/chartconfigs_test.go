package config

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// configs are NodeConfig files in flow style, without apiVersion and kind.
var configs = []string{
	// Valid.
	`{}`,
	`{cdi: {features: [video, display], classes: [gds, imex-channel], passBy: [annotation], hook: ""}, mig: {strategy: mixed}}`,
	`{labels: {place: nfd}, allocation: {mode: dra, taintEffect: NoExecute, respectForeignContainers: true}}`,
	`{health: {probeInterval: 1s, quietPeriod: "0", callTimeout: 1h30m, xids: {ignore: [13, 31], fatal: [79]}}}`,
	`{health: {probeInterval: 1000ms, quietPeriod: 0s, callTimeout: 600ms500ms}}`,
	`{health: {probeInterval: 01.5s, quietPeriod: +.5ms, callTimeout: 0.5m}}`,
	`{health: {probeInterval: 1000000us, quietPeriod: 1µs, callTimeout: 1000000000ns}}`,
	`{resources: [{name: nvidia.com/gpu, replicas: 2}, {name: nvidia.com/mig-1g.5gb.me, replicas: 20000, rename: nvidia.com/mig-1g.5gb.me.shared}]}`,
	`{resources: [{name: nvidia.com/gpu, exclude: true}, {name: nvidia.com/mig-1g.5gb, mode: dra}]}`,
	`{resources: [{name: nvidia.com/gpu, replicas: 3, failRequestsGreaterThanOne: true, mode: devicePlugin}]}`,
	`{resources: [{select: {product: "*H100*"}, name: nvidia.com/h100}, {select: {index: [0, 7]}, exclude: true, name: ""}]}`,
	`{resources: [{select: {architecture: hopper, memory: ">=+16Gi, <40.5Gi"}, mode: dra}, {select: {mig: "*"}, replicas: 2, rename: ""}]}`,
	`{resources: [{select: {computeCapability: ">=8.0,<10", uuid: [GPU-*, "MIG-[0-9a-f]*"], pci: ["0000:18:00.?"]}, name: a.b-c.com/X_y.z}]}`,
	`{resources: [{select: {product: "[^a-c\\]]\\*x"}, name: a/b, replicas: 0, mode: ""}]}`,
	`{monitoring: {resource: nvidia.com/gpu-monitor, count: 2}}`,
	`{shares: {memoryScaling: 0.5, reserve: 1.5Gi, placement: spread, compute: timeslice}}`, `{shares: {compute: ceiling, maxCeiling: 50}}`, `{shares: {memoryScaling: 1, reserve: 0}}`, `{shares: {reserve: "0"}}`,
	`{allocation: {mode: dra}, resources: [{name: nvidia.com/gpu, share: memory, level: any}]}`,
	`{resources: [{name: nvidia.com/gpu, mode: dra, share: replicas, replicas: 4}, {select: {index: [0]}, mode: dra, share: memory}]}`,
	`{cdi: {features: []}, resources: [{name: nvidia.com/gpu, features: [graphics]}, {select: {index: [0]}, features: [video], replicas: 2}]}`,
	`{remediation: {nodeCondition: true, taint: NoExecute, after: 0s, faults: [xid_79, transient, gone]}}`, `{remediation: {faults: []}}`,
	`{nodes: [{names: [a, b], cdi: {features: [compute]}}, {section: x, resources: []}, {selector: "a,!b, c in (d,e) ,f notin (), g!=h,i==j,k=,l>4,m.n/o", mig: {strategy: single}}]}`,

	// Invalid.
	`{mgi: {strategy: mixed}}`, `{mig: {strategies: mixed}}`, `{mig: mixed}`, `{mig: {strategy: Mixed}}`, `{mig: {strategy: ""}}`,
	`{apiVersion: v2}`, `{cdi: {features: [all]}}`, `{cdi: {features: compute}}`, `{cdi: {classes: [nvswitch]}}`,
	`{cdi: {passBy: []}}`, `{cdi: {passBy: [hook]}}`, `{cdi: {hook: opt/hook}}`, `{labels: {place: nowhere}}`,
	`{shares: {memoryScaling: 0}}`, `{shares: {maxCeiling: 0}}`, `{shares: {maxCeiling: 101}}`, `{shares: {maxCeiling: 0.5}}`, `{shares: {memoryScaling: 1.1}}`, `{shares: {memoryScaling: "1"}}`, `{shares: {reserve: 1}}`, `{shares: {reserve: 1GB}}`,
	`{shares: {placement: random}}`, `{shares: {compute: sm}}`, `{shares: {cores: 100}}`,
	`{resources: [{name: nvidia.com/gpu, mode: dra, share: cores}]}`, `{resources: [{name: nvidia.com/gpu, mode: devicePlugin, share: memory}]}`,
	`{resources: [{name: nvidia.com/gpu, mode: dra, share: memory, replicas: 2}]}`, `{resources: [{name: nvidia.com/gpu, mode: dra, share: replicas}]}`,
	`{resources: [{name: nvidia.com/gpu, mode: dra, share: memory, limits: memory}]}`, `{resources: [{name: nvidia.com/gpu, exclude: true, share: memory}]}`,
	`{resources: [{name: nvidia.com/gpu, mode: dra, share: replicas, replicas: 2, level: any}]}`,
	`{allocation: {mode: ""}}`, `{allocation: {mode: deviceplugin}}`, `{allocation: {taintEffect: None}}`, `{allocation: {respectForeignContainers: 1}}`,
	`{health: {quietPeriod: often}}`, `{health: {quietPeriod: 5}}`, `{health: {quietPeriod: 5 s}}`, `{health: {quietPeriod: -1s}}`, `{health: {quietPeriod: ""}}`,
	`{health: {quietPeriod: 1d}}`, `{health: {quietPeriod: [1s]}}`, `{health: {probeInterval: 0.5s}}`, `{health: {probeInterval: 999ms}}`,
	`{health: {callTimeout: "0"}}`, `{health: {callTimeout: 0m}}`, `{health: {xids: {ignore: [a]}}}`,
	`{monitoring: {resource: monitor}}`, `{monitoring: {resource: nvidia.com/gpu-monitor, count: 0}}`, `{monitoring: {count: 100000}}`,
	`{remediation: {taint: Never}}`, `{remediation: {after: -1s}}`, `{remediation: {faults: [xid_]}}`, `{remediation: {faults: [xid_079]}}`, `{remediation: {faults: [lost]}}`,
	`{resources: [{name: nvidia.com/gpu, features: [all]}]}`, `{resources: [{name: nvidia.com/gpu, mode: dra, features: [video]}]}`,
	`{resources: [{select: {index: [0]}, exclude: true, features: [video]}]}`,
	`{resources: {name: nvidia.com/gpu}}`, `{resources: [{name: nvidia.com/gpu}]}`, `{resources: [{replicas: 2}]}`, `{resources: [{}]}`,
	`{resources: [{name: nvidia.com/gpu, replicas: 1}]}`, `{resources: [{name: nvidia.com/gpu, replicas: 20001}]}`, `{resources: [{name: nvidia.com/gpu, replicas: -2}]}`,
	`{resources: [{name: nvidia.com/gpu, replicas: "2"}]}`, `{resources: [{name: nvidia.com/gpus, replicas: 2}]}`, `{resources: [{name: nvidia.com/mig-1g.5gb+me, replicas: 2}]}`,
	`{resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/part}]}`, `{resources: [{name: nvidia.com/gpu, replicas: 2, as: x}]}`,
	`{resources: [{name: nvidia.com/gpu, exclude: true, replicas: 2}]}`, `{resources: [{name: nvidia.com/gpu, mode: dra, replicas: 2}]}`,
	`{resources: [{name: nvidia.com/gpu, mode: both}]}`, `{resources: [{exclude: true}]}`,
	`{resources: [{select: {product: H100}}]}`, `{resources: [{select: {product: H100}, failRequestsGreaterThanOne: true, name: a.com/b}]}`,
	`{resources: [{select: {product: "["}, exclude: true}]}`, `{resources: [{select: {uuid: []}, exclude: true}]}`, `{resources: [{select: {pci: ["["]}, exclude: true}]}`,
	`{resources: [{select: {vendor: x}, exclude: true}]}`, `{resources: [{select: {index: [-1]}, exclude: true}]}`, `{resources: [{select: {memory: 16Gi}, exclude: true}]}`,
	`{resources: [{select: {memory: ">16GB"}, exclude: true}]}`, `{resources: [{select: {computeCapability: ">=8.x"}, exclude: true}]}`, `{resources: [{select: {computeCapability: ">=8,"}, exclude: true}]}`,
	`{resources: [{select: {index: [0]}, name: gpu}]}`, `{resources: [{select: {index: [0]}, name: x.kubernetes.io/gpu}]}`, `{resources: [{select: {index: [0]}, name: a.com/b c}]}`,
	`{resources: [{select: {index: [0]}, name: a.com/b, rename: a.com/b.shared, replicas: 2}]}`, `{resources: [{select: {index: [0]}, name: a.com/b, exclude: true}]}`,
	`{nodes: [{cdi: {features: [compute]}}]}`, `{nodes: [{names: [], selector: "", section: ""}]}`, `{nodes: [{names: [a], nodes: []}]}`, `{nodes: [{names: a}]}`,
	`{nodes: [{names: [a], mig: {strategy: x}}]}`, `{nodes: [{names: [a], resources: [{name: x, replicas: 2}]}]}`, `{nodes: [{selector: in in (in}]}`,
	`{monitoring: {resource: nvidia.com/gpu}}`, `{resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/other.shared}]}`,
	`{allocation: {mode: dra}, resources: [{name: nvidia.com/gpu, replicas: 2}]}`, `{resources: [{name: nvidia.com/gpu, share: memory}]}`,
	`{allocation: {mode: dra}, resources: [{select: {index: [0]}, features: [video]}]}`, `{monitoring: {resource: nvidia.com/mig-1g.5gb}}`,
	`{nodes: [{selector: "a b"}]}`, `{nodes: [{selector: "a=b,,c"}]}`, `{nodes: [{selector: "a in b"}]}`, `{nodes: [{selector: "=b"}]}`,
}

// beyondSchema are invalid configs that the schema accepts: it does not express the conditions that they violate. The
// agent reports them and keeps its last known good config.
var beyondSchema = []string{
	`{health: {xids: {ignore: [79], fatal: [79]}}}`,
	`{health: {quietPeriod: 9999999h}}`,
	`{health: {probeInterval: 1ms1ms}}`,
	`{resources: [{name: nvidia.com/gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}]}`,
}

// The chart's schema rejects the configs that the agent rejects, except those in beyondSchema, and no others. The
// validator is that of Helm.
func TestConfigSchema(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("../deploy/gpucdi/values.schema.json#/properties/config")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) error {
		_, err := Parse([]byte(text))
		return err
	}
	validate := func(text string) error {
		var document any
		if err := yaml.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}
	rejected := 0
	for _, text := range configs {
		want, got := check(text), validate(text)
		if (want == nil) != (got == nil) {
			t.Errorf("%s: Parse: %v; schema: %v", text, want, got)
		}
		if want != nil {
			rejected++
		}
	}
	if rejected == 0 || rejected == len(configs) {
		t.Errorf("%d of %d configs are invalid", rejected, len(configs))
	}
	for _, text := range beyondSchema {
		if err := check(text); err == nil {
			t.Errorf("Parse accepts %s", text)
		}
		if err := validate(text); err != nil {
			t.Errorf("the schema rejects %s; move it to configs: %v", text, err)
		}
	}
}
