package agent

import (
	"os"
	"strings"
	"testing"
)

func TestTheDocumentHasTheCategories(t *testing.T) {
	text, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, category := range []string{faultUnreadable, faultDriver, faultSpec, faultDeviceNode, faultConfig, faultWaits, faultLeft} {
		if !strings.Contains(string(text), " | `"+category+"` | ") {
			t.Errorf("docs/health.md does not tell the category %s", category)
		}
	}
}
