package host

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestDocumentedLayouts(t *testing.T) {
	text, err := os.ReadFile("../../docs/driver-roots.md")
	if err != nil {
		t.Fatal(err)
	}
	code := func(paths []string) string {
		return strings.ReplaceAll("`"+strings.Join(paths, "`, `")+"`", gnuMachine, "MACHINE")
	}
	var want strings.Builder
	for _, l := range layouts {
		fmt.Fprintf(&want, "| %s | `%s` | %s | %s | %s |\n", l.name, l.root, code(l.libraries), code(l.programs), code(l.data))
	}
	if !strings.Contains(string(text), "---|\n"+want.String()+"\n") {
		t.Errorf("docs/driver-roots.md does not have exactly these rows:\n%s", want.String())
	}
}

func TestDocumentedKubeletDirs(t *testing.T) {
	text, err := os.ReadFile("../../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range kubeletDirs {
		if !strings.Contains(string(text), "| `"+dir+"` |") {
			t.Errorf("docs/runtimes.md does not list %s", dir)
		}
	}
}
