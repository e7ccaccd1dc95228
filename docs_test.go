package gpucdi_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What docs/troubleshooting.md says that gpucdi says, it says.
func TestTroubleshootingQuotesTheSource(t *testing.T) {
	document, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	all := source(t)
	quotes := 0
	for line := range strings.Lines(string(document)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Contains(line, "---") {
			continue
		}
		for _, quote := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1) {
			quotes++
			if !strings.Contains(all, quote[1]) {
				t.Errorf("gpucdi never says %q", quote[1])
			}
		}
	}
	if quotes < 10 {
		t.Errorf("only %d quotes: do test and document still agree?", quotes)
	}
}

// source is all of the product's source, less its tests.
func source(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pkg := range packages(t) {
		files, err := filepath.Glob(filepath.Join(strings.TrimPrefix(pkg.ImportPath, module), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}
