package gpucdi_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What docs/troubleshooting.md says that gpucdi says, it says.
func TestTroubleshootingQuotesTheSource(t *testing.T) {
	document := read(t, "docs/troubleshooting.md")
	all := source(t)
	quotes := 0
	for line := range strings.Lines(document) {
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
			all.WriteString(read(t, file))
		}
	}
	return all.String()
}

// README leads to every document, and a link to a document, or to a part of one, leads there.
func TestLinksLead(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range documents {
		if !strings.Contains(read(t, "README.md"), "("+name+")") {
			t.Errorf("README does not lead to %s", name)
		}
	}
	decisions, err := filepath.Glob("docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, name := range append(append(documents, decisions...), "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(read(t, name), -1) {
			target, part, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if part != "" && !slices.Contains(parts(read(t, path)), part) {
				t.Errorf("%s: %s has no part %s", name, path, part)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links: does this test still find them?", links)
	}
}

// parts are what links call the headings of a document.
func parts(document string) (names []string) {
	for line := range strings.Lines(document) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			plain := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			names = append(names, strings.ReplaceAll(plain, " ", "-"))
		}
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
