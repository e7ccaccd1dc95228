package config_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/config"
)

// blocks are the YAML blocks of the document.
func blocks(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, rest := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		blocks = append(blocks, block)
	}
	if len(blocks) != 2 {
		t.Fatalf("docs/configuration.md has %d yaml blocks, want the defaults and the sections", len(blocks))
	}
	return blocks
}

func TestTheDocumentedDefaultsAreTheDefaults(t *testing.T) {
	defaults := blocks(t)[0]
	got := parse(t, defaults, config.Node{})
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", config.Default()) {
		t.Errorf("documented %+v, default %+v", got, config.Default())
	}
	// A key that is left out of the document would still have its default.
	for _, key := range keys(reflect.TypeFor[config.Config]()) {
		if !strings.Contains(defaults, key+":") {
			t.Errorf("%s is not documented", key)
		}
	}
}

// keys are those of a type and of the types of its fields.
func keys(of reflect.Type) (all []string) {
	if of.Kind() != reflect.Struct {
		return nil
	}
	for i := range of.NumField() {
		field := of.Field(i)
		all = append(append(all, field.Tag.Get("yaml")), keys(field.Type)...)
	}
	return all
}

func TestTheDocumentedSectionsHold(t *testing.T) {
	sections := blocks(t)[1]
	for _, node := range []config.Node{
		{Name: "gpu-1"},
		{Labels: map[string]string{config.SectionLabel: "patient"}},
		{Labels: map[string]string{"nvidia.com/gpu.family": "hopper"}},
	} {
		if got := parse(t, sections, node); reflect.DeepEqual(got, config.Default()) {
			t.Errorf("no section holds on %+v", node)
		}
	}
	if got := parse(t, sections, config.Node{}); !reflect.DeepEqual(got, config.Default()) {
		t.Errorf("on other nodes holds %+v", got)
	}
}
