package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

func TestOutputFlag(t *testing.T) {
	for name, want := range map[string]string{
		"list":   "table wide json yaml",
		"status": "table wide json yaml",
		"doctor": "table json yaml",
	} {
		cmd, _, err := newRootCommand().Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		flag := cmd.Flags().ShorthandLookup("o")
		if flag == nil || flag.Name != "output" || flag.DefValue != formatTable {
			t.Fatalf("%s: flag -o is %+v", name, flag)
		}
		for _, format := range strings.Fields(want) {
			if err := cmd.ParseFlags([]string{"--output", format}); err != nil || flag.Value.String() != format {
				t.Errorf("%s --output %s: %s, %v", name, format, flag.Value, err)
			}
		}
		if err := cmd.ParseFlags([]string{"-o", "xml"}); err == nil || !strings.Contains(err.Error(), "must be one of "+strings.ReplaceAll(want, " ", ", ")) {
			t.Errorf("%s -o xml: error %v", name, err)
		}
	}
	root := newRootCommand()
	root.SetArgs([]string{"doctor", "-o", "wide"})
	if err := root.Execute(); !errors.As(err, new(usageError)) {
		t.Errorf("doctor -o wide: error %v, want a usage error", err)
	}
}

// The JSON of a status has the health of each device, and YAML has the same keys.
func TestStructuredOutput(t *testing.T) {
	node := status.Node{Name: "node", Devices: []status.Device{{ID: "GPU-a"}, {ID: "GPU-b", State: status.Waiting}}}
	for _, format := range []string{formatJSON, formatYAML} {
		var out strings.Builder
		if err := writeStatus(&out, node, outputFormat{name: format}); err != nil {
			t.Fatal(err)
		}
		unmarshal := json.Unmarshal
		if format == formatYAML {
			unmarshal = yaml.Unmarshal
		}
		var got struct {
			Devices []struct{ ID, Health string }
		}
		if err := unmarshal([]byte(out.String()), &got); err != nil {
			t.Fatal(err)
		}
		if d := got.Devices; len(d) != 2 || d[0].Health != "healthy" || d[1].Health != "waiting" || d[1].ID != "GPU-b" {
			t.Errorf("%s: devices %+v in\n%s", format, d, out.String())
		}
	}
	var list strings.Builder
	output := outputFormat{name: formatYAML}
	if err := output.encode(&list, &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}}}); err != nil || !strings.Contains(list.String(), "uuid: GPU-a\n") {
		t.Errorf("error %v, YAML\n%s", err, list.String())
	}
}

// Non-graphic characters in JSON are escaped, and decode to the same text.
func TestJSONIsSafeForTerminals(t *testing.T) {
	want := "\x1b[2J \x7f \u009b2J \u202e \U000e0001 é 漢 \u2028\n"
	var out strings.Builder
	if err := (&outputFormat{name: formatJSON}).encode(&out, map[string]string{want: want}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(strings.ReplaceAll(out.String(), "\n", ""), func(r rune) bool { return !unicode.IsGraphic(r) }) || !strings.Contains(out.String(), "é 漢") {
		t.Errorf("not safe: %q", out.String())
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got[want] != want {
		t.Errorf("decoded to %q, %v", got, err)
	}
}

// A diff contains text of a file that any program may have written.
func TestDiffIsSafeForTerminals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nvidia.yaml")
	if err := os.WriteFile(path, []byte("a: \x1b[2J\u202e\r\nb: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := check(&out, path, []byte("b: 1\n")); err == nil {
		t.Error("the file is not stale")
	}
	if !strings.Contains(out.String(), "\n-a: \\x1b[2J\\u202e\\r\n b: 1\n") {
		t.Errorf("got the diff %q", out.String())
	}
}

// The shells complete commands, flags and the values of --output.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := completion(t, "completion", shell); !strings.Contains(out, "gpucdi") {
			t.Errorf("completion %s prints\n%s", shell, out)
		}
	}
	for last, want := range map[string]string{"st": "status\t", "--out": "--output\t"} {
		args := []string{cobra.ShellCompRequestCmd, last}
		if strings.HasPrefix(last, "-") {
			args = []string{cobra.ShellCompRequestCmd, "status", last}
		}
		if out := completion(t, args...); !strings.HasPrefix(out, want) {
			t.Errorf("%q is completed to\n%s", last, out)
		}
	}
	if out := completion(t, cobra.ShellCompRequestCmd, "doctor", "-o", ""); !strings.HasPrefix(out, "table\njson\nyaml\n") {
		t.Errorf("doctor -o is completed to\n%s", out)
	}
}

func completion(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&strings.Builder{})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("gpucdi %s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}
