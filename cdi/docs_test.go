package cdi

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

func TestFeaturesDocumentation(t *testing.T) {
	var libraries, aliases, files strings.Builder
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
	for _, a := range libraryAliases {
		fmt.Fprintf(&aliases, "| `%s` | `%s` | %s | %s |\n", a.soname, a.name, a.feature, a.why)
	}
	for _, f := range driverFiles {
		fmt.Fprintf(&files, "| `%s` | %s | `%s` |\n",
			strings.ReplaceAll(f.name, gnuMachine, "MACHINE"), f.feature, strings.Join(f.containerDirs, "`, `"))
	}
	checkTables(t, "../docs/features.md", libraries.String(), aliases.String(), files.String())
}

func TestEnvironmentDocumentation(t *testing.T) {
	text, err := os.ReadFile("../docs/features.md")
	if err != nil {
		t.Fatal(err)
	}
	env := environment([]*specs.Mount{{ContainerPath: libcudaDir + "/libcuda.so.1"}})
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		if row := fmt.Sprintf("| `%s` | `%s` |", name, value); !strings.Contains(string(text), row) {
			t.Errorf("docs/features.md: no row starts with %s", row)
		}
	}
}

// checkTables fails the test unless the document has these tables. Each of rows contains all rows of one table.
func checkTables(t *testing.T, document string, rows ...string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range rows {
		if !strings.Contains(string(text), "---|\n"+want+"\n") {
			t.Errorf("%s: no table with exactly these rows:\n%s", document, want)
		}
	}
}

func TestClassesDocumentation(t *testing.T) {
	code := func(paths ...string) string { return "`" + strings.Join(paths, "`, `") + "`" }
	var rows strings.Builder
	for _, c := range classes {
		var files []string
		for _, b := range c.binds {
			files = append(files, code(b.path))
		}
		if c.csv != "" {
			files = append(files, "files listed in "+code(c.csv))
		}
		devices, withGPUs := "", ""
		if c.devicePrefix != "" {
			devices = "number after `" + c.devicePrefix + "`"
		}
		if c.onlyDevice != "" {
			devices = code(c.onlyDevice)
		}
		if c.withGPUs != "" {
			withGPUs = code(AuxiliaryDeviceName(c.name))
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s | %s | %s |\n",
			code(string(c.name)), c.description, code(c.nodes...), strings.Join(files, ", "), devices, withGPUs)
	}
	checkTables(t, "../docs/other-devices.md", rows.String())
}
