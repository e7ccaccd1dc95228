package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// docs/moving.md has a row for each value of NVIDIA's chart. Values that it lists as the same exist in gpucdi's chart
// and accept NVIDIA's default. For the others, helm fails and prints what to use instead.
func TestMovingListsChartValues(t *testing.T) {
	document, err := os.ReadFile("../../docs/moving.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(document), "\n### Chart values\n")
	section, _, _ = strings.Cut(section, "\n### ")
	rows := map[string]string{} // replacements by path of NVIDIA's value
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				rows[name[1]] = strings.TrimSpace(cells[2])
			}
		}
	}
	defaults := nvidiaValues(t)
	for path, value := range defaults {
		row := rowOf(rows, path)
		if row == "" {
			t.Errorf("docs/moving.md has no row for %s", path)
			continue
		}
		same := strings.HasPrefix(row, "the same")
		if value == nil && !same {
			value = "x" // the chart treats null as unset
		}
		_, err := helmValues(t, nested(t, path, value), "template", "gpucdi")
		key, rest, _ := strings.Cut(path, ".")
		if key == "config" {
			key = "config." + rest
		}
		switch {
		case same:
			if err != nil {
				t.Errorf("%s of NVIDIA's chart is not the same: %v", path, err)
			}
		case err == nil:
			t.Errorf("%s is accepted, want %s", path, row)
		case !strings.Contains(err.Error(), key+" is a value of NVIDIA's chart: "):
			t.Errorf("%s is rejected without a replacement: %v", path, err)
		}
	}
	if len(defaults) < 30 {
		t.Errorf("found only %d values in NVIDIA's chart", len(defaults))
	}
}

// rowOf returns the row of a path or of its nearest parent with a row.
func rowOf(rows map[string]string, path string) string {
	for {
		if row := rows[path]; row != "" {
			return row
		}
		i := strings.LastIndex(path, ".")
		if i < 0 {
			return ""
		}
		path = path[:i]
	}
}

// nested returns JSON with a value at a path.
func nested(t *testing.T, path string, value any) string {
	t.Helper()
	keys := strings.Split(path, ".")
	for i := len(keys) - 1; i >= 0; i-- {
		value = map[string]any{keys[i]: value}
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// nvidiaValues returns the defaults of NVIDIA's chart by path.
func nvidiaValues(t *testing.T) map[string]any {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/NVIDIA/k8s-device-plugin@"+tools.NVIDIAPluginVersion)
	cmd.Dir = t.TempDir() // outside of this module, which does not require it
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("downloading NVIDIA's plugin: %v\n%s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "deployments/helm/nvidia-device-plugin/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	paths := map[string]any{}
	var walk func(prefix string, values map[string]any)
	walk = func(prefix string, values map[string]any) {
		for key, value := range values {
			if children, ok := value.(map[string]any); ok && len(children) > 0 {
				walk(prefix+key+".", children)
				continue
			}
			paths[prefix+key] = value
		}
	}
	walk("", values)
	return paths
}
