package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestConfigCheck(t *testing.T) {
	const valid, invalid = "mig: {strategy: mixed}\n", "mig: {strategy: both}\n"
	dir := t.TempDir()
	for name, text := range map[string]string{"valid.yaml": valid, "invalid.yaml": invalid} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const problem = `mig.strategy: want none, single or mixed, got "both"`
	for name, tc := range map[string]struct{ file, stdin, out, err string }{
		"file":                     {filepath.Join(dir, "valid.yaml"), invalid, "valid.yaml is valid\n", ""},
		"invalid file":             {filepath.Join(dir, "invalid.yaml"), valid, "", "invalid.yaml: " + problem},
		"standard input":           {"-", valid, "standard input is valid\n", ""},
		"empty standard input":     {"-", "", "standard input is valid\n", ""},
		"invalid standard input":   {"-", invalid, "", "reading config from standard input: " + problem},
		"oversized standard input": {"-", strings.Repeat("#", 1<<20), "", "larger than 131072 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			cmd := newRootCommand()
			cmd.SetArgs([]string{"config", "check", tc.file})
			cmd.SetIn(strings.NewReader(tc.stdin))
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.HasSuffix(err.Error(), tc.err)) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
			if !strings.HasSuffix(out.String(), tc.out) || tc.out == "" && out.Len() > 0 {
				t.Errorf("got output %q, want %q", out.String(), tc.out)
			}
		})
	}
}

// The inventory is that of another node, as printed by gpucdi list -o json.
func TestConfigCheckExplain(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Product: "NVIDIA H100", MIG: gpu.MIGDisabled, ComputeCapability: gpu.ComputeCapability{Major: 9},
			Links: []gpu.Link{{Peer: "GPU-b", NVLinks: 18, PCIe: gpu.CrossNUMA}}},
		{UUID: "GPU-b", Index: 1, Product: strings.ToValidUTF8(hostile, ""), MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-c", Profile: "1g.10gb"}}},
		{UUID: "GPU-d", Index: 2, Product: "NVIDIA T4", MIG: gpu.MIGUnsupported, Fault: fault("lost")},
	}}
	data, err := json.Marshal(inv)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "inventory.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	const config = `mig: {strategy: mixed}
nodes:
- names: [a]
  resources: [{select: {computeCapability: ">=9"}, exclude: true}, {select: {product: "*T4"}, name: example.com/t4, replicas: 2}]
- selector: pool=b
  resources: [{select: {mig: "*"}, name: example.com/mig}]
`
	for name, tc := range map[string]struct{ flags, want []string }{
		"no section": {nil, []string{"0 GPU-a NVIDIA H100 nvidia.com/gpu devicePlugin 1 default -", "MIG-c", "nvidia.com/mig-1g.10gb devicePlugin 1 default -", "nvidia.com/gpu devicePlugin 1 default lost"}},
		"by name":    {[]string{"--node-name", "a"}, []string{"NVIDIA H100 excluded - 1 resources[0] -", "nvidia.com/mig-1g.10gb devicePlugin 1 default -", "example.com/t4 devicePlugin 2 resources[1] lost"}},
		"by label":   {[]string{"--node-labels", "pool=b"}, []string{"nvidia.com/gpu devicePlugin 1 default -", "example.com/mig devicePlugin 1 resources[0] -", "nvidia.com/gpu devicePlugin 1 default lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			cmd := newRootCommand()
			cmd.SetArgs(append([]string{"config", "check", "-", "--explain", "--inventory", file}, tc.flags...))
			cmd.SetIn(strings.NewReader(config))
			cmd.SetOut(&out)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkGraphic(t, out.String())
			text := strings.Join(strings.Fields(out.String()), " ")
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			if lines := strings.Count(out.String(), "\n"); lines != 4 {
				t.Errorf("got %d lines, want 4:\n%s", lines, out.String())
			}
		})
	}
}
