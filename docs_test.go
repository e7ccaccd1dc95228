package gpucdi_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Every message that docs/troubleshooting.md quotes is one that the product writes: part of a
// string in its code. Comments do not count.
func TestTroubleshootingQuotesTheSource(t *testing.T) {
	document := read(t, "docs/troubleshooting.md")
	all := messages(t)
	quotes := 0
	for line := range strings.Lines(document) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Contains(line, "---") {
			continue
		}
		for _, quote := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1) {
			quotes++
			if !slices.ContainsFunc(all, func(message string) bool { return strings.Contains(message, quote[1]) }) {
				t.Errorf("no string of the product contains %q", quote[1])
			}
		}
	}
	if quotes < 10 {
		t.Errorf("only %d quotes: do test and document still agree?", quotes)
	}
}

// messages are the strings in the product's code, less its tests.
func messages(t *testing.T) (all []string) {
	t.Helper()
	for _, pkg := range packages(t) {
		files, err := filepath.Glob(filepath.Join(strings.TrimPrefix(pkg.ImportPath, module), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, stringsIn(file)...)
		}
	}
	return all
}

// stringsIn returns the strings of a file. Import paths and struct tags are no messages.
func stringsIn(file *ast.File) (all []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case *ast.BasicLit, *ast.BinaryExpr:
			all = append(all, text(n))
		}
		return true
	})
	return all
}

// text is the string that a node stands for. An operand of a concatenation that is no literal
// is %v, as it would be in a format.
func text(n ast.Node) string {
	switch n := n.(type) {
	case *ast.BasicLit:
		if literal, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
			return literal
		}
	case *ast.BinaryExpr:
		if n.Op == token.ADD {
			return text(n.X) + text(n.Y)
		}
	}
	return "%v"
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
