package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpucdi/gpucdi/config"
)

func TestDocumentedSections(t *testing.T) {
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## Sections for some nodes")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	sections, _, _ := strings.Cut(rest, "```")
	for _, node := range []config.Node{
		{Name: "gpu-1"},
		{Labels: map[string]string{config.SectionLabel: "slow-driver"}},
		{Labels: map[string]string{"nvidia.com/gpu.family": "hopper"}},
	} {
		if got := effective(t, sections, node); reflect.DeepEqual(got, config.Default()) {
			t.Errorf("no section matches %+v", node)
		}
	}
	if got := effective(t, sections, config.Node{}); !reflect.DeepEqual(got, config.Default()) {
		t.Errorf("config of other nodes is %+v, want the default", got)
	}
}

// The configs in the documents are valid. A block is one if each of its keys is a key of the config, unless it is a part
// of a pod: there, resources is no list.
func TestDocumentedConfigs(t *testing.T) {
	paths, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			if !isConfig(block[1]) {
				continue
			}
			checked[filepath.Base(path)] = true
			if _, err := config.Parse([]byte(block[1])); err != nil {
				t.Errorf("%s: %v\n%s", path, err, block[1])
			}
		}
	}
	for _, name := range []string{"configuration.md", "features.md", "mig.md", "monitoring-pods.md", "nri.md", "resources.md", "sharing.md", "vcuda.md"} {
		if !checked[name] {
			t.Errorf("%s has no config", name)
		}
	}
}

func isConfig(block string) bool {
	var keys map[string]any
	if err := yaml.Unmarshal([]byte(block), &keys); err != nil || len(keys) == 0 {
		return false
	}
	if resources, exists := keys["resources"]; exists && reflect.TypeOf(resources).Kind() != reflect.Slice {
		return false
	}
	for key := range keys {
		if !configKeys[key] {
			return false
		}
	}
	return true
}

// configKeys are the keys of a config.
var configKeys = func() map[string]bool {
	keys, fields := map[string]bool{"nodes": true}, reflect.TypeFor[config.Config]()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("yaml"), ",")
		keys[name] = true
	}
	return keys
}()
