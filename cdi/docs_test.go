package cdi

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

func TestTheDocumentedFeaturesAreTheTables(t *testing.T) {
	var libraries, others, files strings.Builder
	for _, use := range libraryUses {
		features := make([]string, len(use.features))
		for i, f := range use.features {
			features[i] = string(f)
		}
		prefix := "any other"
		if use.prefix != "" {
			prefix = "`" + use.prefix + "…`"
		}
		fmt.Fprintf(&libraries, "| %s | %s | %s |\n", prefix, strings.Join(features, ", "), use.why)
	}
	for _, also := range alsoNamed {
		fmt.Fprintf(&others, "| `%s` | `%s` | %s | %s |\n", also.soname, also.name, also.feature, also.why)
	}
	for _, s := range sought {
		fmt.Fprintf(&files, "| `%s` | %s | `%s` |\n", strings.ReplaceAll(s.name, gnuMachine, "MACHINE"), s.feature, strings.Join(s.at, "`, `"))
	}
	documented(t, "../docs/features.md", libraries.String(), others.String(), files.String())
}

func TestTheDocumentedEnvironmentIsTheSpecs(t *testing.T) {
	text, err := os.ReadFile("../docs/features.md")
	if err != nil {
		t.Fatal(err)
	}
	env := environment([]*specs.Mount{{ContainerPath: libcudaDir + "/libcuda.so.1"}})
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		if row := fmt.Sprintf("| `%s` | `%s` |", name, value); !strings.Contains(string(text), row) {
			t.Errorf("docs/features.md has no row that begins %s", row)
		}
	}
}

// documented fails unless the document has a table of exactly those rows for
// each of rows.
func documented(t *testing.T, document string, rows ...string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range rows {
		if !strings.Contains(string(text), "---|\n"+want+"\n") {
			t.Errorf("%s does not have exactly these rows:\n%s", document, want)
		}
	}
}

func TestTheDocumentedClassesAreTheTable(t *testing.T) {
	code := func(paths ...string) string { return "`" + strings.Join(paths, "`, `") + "`" }
	var rows strings.Builder
	for _, c := range classes {
		var with []string
		for _, b := range c.binds {
			with = append(with, code(b.path))
		}
		if c.csv != "" {
			with = append(with, "what "+code(c.csv)+" lists")
		}
		each, given := "", ""
		if c.each != "" {
			each = "by the number after `" + c.each + "`"
		}
		if c.only != "" {
			each = code(c.only)
		}
		if c.with != "" {
			given = code(WithGPUs(c.name))
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s | %s | %s |\n", code(string(c.name)), c.what, code(c.nodes...), strings.Join(with, ", "), each, given)
	}
	documented(t, "../docs/other-devices.md", rows.String())
}
