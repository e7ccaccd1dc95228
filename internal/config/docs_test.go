package config_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/config"
)

func TestTheDocumentedDefaultsAreTheDefaults(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	block, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/configuration.md has no yaml block")
	}
	got, err := config.Parse([]byte(block))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", config.Default()) {
		t.Errorf("documented %+v, default %+v", got, config.Default())
	}
	// A key that is left out of the document would still have its default.
	for _, key := range []string{"features", "passBy", "probeInterval", "quietPeriod", "callTimeout", "ignore", "fatal"} {
		if !strings.Contains(block, key) {
			t.Errorf("%s is not documented", key)
		}
	}
}
