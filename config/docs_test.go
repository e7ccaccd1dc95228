package config_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

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
