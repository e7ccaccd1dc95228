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

// foreignMessages are messages of Kubernetes and of the kernel that the symptoms in the documents quote.
var foreignMessages = []string{
	"cannot allocate all claims", "has been stopped", "Insufficient nvidia.com/gpu", "Insufficient nvidia.com/vcuda-core",
	"connection refused", "no such file or directory", "unable to get claim info for ResourceClaim",
	"no relationship found between node",
}

// Every message of gpucdi that a troubleshooting table quotes is part of a string literal of the product, or of the
// chart. The tables have the messages in the column "message", or among the symptoms.
func TestTroubleshootingQuotesMessages(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := append(messages(t), read(t, "deploy/gpucdi/templates/vcuda.yaml"))
	quotes := 0
	for _, name := range documents {
		for _, quote := range quotedMessages(read(t, name)) {
			quotes++
			if !slices.ContainsFunc(all, func(message string) bool { return strings.Contains(message, quote) }) {
				t.Errorf("%s quotes %q, which no string of the product contains", name, quote)
			}
		}
	}
	if quotes < 40 {
		t.Errorf("found only %d quotes; has the format of the tables changed?", quotes)
	}
}

// quotedMessages returns the messages that the troubleshooting tables of a document quote.
func quotedMessages(document string) (quotes []string) {
	column := 0 // with messages; 0 outside of a table
	for line := range strings.Lines(document) {
		cells := strings.Split(line, "|")
		switch {
		case strings.HasPrefix(line, "| symptom | message |"):
			column = 2
		case strings.HasPrefix(line, "| symptom |"):
			column = 1
		case len(cells) < 4:
			column = 0
		case column > 0:
			for _, quote := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[column], -1) {
				// A symptom also quotes commands and names.
				isMessage := strings.Contains(quote[1], " ") && !strings.HasPrefix(quote[1], "gpucdi ") && !slices.Contains(foreignMessages, quote[1])
				if column == 2 || isMessage {
					quotes = append(quotes, quote[1])
				}
			}
		}
	}
	return quotes
}

// messages returns the string literals of the product, without those of tests.
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

// stringsIn returns the string literals of a file, without import paths and struct tags.
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

// text returns the value of a string expression. An operand that is not a string literal becomes %v, as in a format
// string.
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

// README.md links to every document, and no relative link is broken.
func TestLinks(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range documents {
		if !strings.Contains(read(t, "README.md"), "("+name+")") {
			t.Errorf("README.md does not link to %s", name)
		}
	}
	decisions, err := filepath.Glob("docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, name := range append(append(documents, decisions...), "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(read(t, name), -1) {
			target, anchor, _ := strings.Cut(link[1], "#")
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
			} else if anchor != "" && !slices.Contains(anchors(read(t, path)), anchor) {
				t.Errorf("%s: %s has no heading with the anchor %s", name, path, anchor)
			}
		}
	}
	if links < 50 {
		t.Errorf("found only %d links; has their format changed?", links)
	}
}

// anchors returns the anchors of the headings of a document, as GitHub generates them.
func anchors(document string) (anchors []string) {
	inBlock := false // its lines may be comments that start with #
	for line := range strings.Lines(document) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inBlock = !inBlock
		}
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && !inBlock {
			plain := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			anchors = append(anchors, strings.ReplaceAll(plain, " ", "-"))
		}
	}
	return anchors
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
