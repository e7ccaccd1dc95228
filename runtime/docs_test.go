package runtime

import (
	"os"
	"strings"
	"testing"
)

func TestTheDocumentedPlacesAreTheTable(t *testing.T) {
	text, err := os.ReadFile("../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Distributions\n")
	for _, p := range places {
		for _, value := range []string{p.socket, p.config} {
			if !strings.Contains(strings.ReplaceAll(table, "`", ""), value) {
				t.Errorf("docs/runtimes.md does not have %s", value)
			}
		}
	}
}
