package runtime

import (
	"os"
	"strings"
	"testing"
)

func TestDistributionsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Distributions\n")
	for _, d := range distributions {
		for _, value := range []string{d.socket, d.config} {
			if !strings.Contains(strings.ReplaceAll(table, "`", ""), value) {
				t.Errorf("docs/runtimes.md does not contain %s", value)
			}
		}
	}
}
