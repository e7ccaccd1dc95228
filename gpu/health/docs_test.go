package health_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu/health"
)

func TestDocumentedXIDs(t *testing.T) {
	text, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, x := range health.Catalog() {
		fmt.Fprintf(&want, "| %d | %s | %s |\n", x.Code, x.Class, x.Text)
	}
	if !strings.Contains(string(text), "|---|---|---|\n"+want.String()+"\n") {
		t.Errorf("docs/health.md does not have exactly these rows:\n%s", want.String())
	}
}
