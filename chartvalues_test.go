package gpucdi_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write docs/chart-values.md")

// docs/chart-values.md lists the values of the chart, from the comments in its values.yaml.
func TestReferenceChartValues(t *testing.T) {
	const path = "docs/chart-values.md"
	var file yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, "deploy/gpucdi/values.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(`# Chart values
All values of the [Helm chart](deploy.md) with their defaults. ` + "`config` is described in\n" +
		`[Configuration](configuration.md). For values of NVIDIA's chart that this chart lacks, see
[Migrate from the NVIDIA device plugin](moving.md#chart-values).

| value | default | description |
|---|---|---|
`)
	for _, undocumented := range writeValues(&page, "", file.Content[0]) {
		t.Errorf("value %s has no comment", undocumented)
	}
	page.WriteString("\n`make reference` generates this page from the comments in `values.yaml`.\n")
	if *update {
		if err := os.WriteFile(path, []byte(page.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if read(t, path) != page.String() {
		t.Errorf("%s is stale; run make reference", path)
	}
}

// writeValues writes a row for each key of a mapping, and returns the keys without a comment. Mappings in flow style
// are defaults of a single value.
func writeValues(page *strings.Builder, prefix string, mapping *yaml.Node) (undocumented []string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		comment := description(key, value)
		isGroup := value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0
		defaultValue := ""
		if !isGroup {
			defaultValue = "`" + flow(value) + "`"
		}
		switch {
		case comment != "":
			fmt.Fprintf(page, "| `%s` | %s | %s |\n", name, defaultValue, comment)
		case !isGroup:
			undocumented = append(undocumented, name)
		}
		if isGroup {
			undocumented = append(undocumented, writeValues(page, name+".", value)...)
		}
	}
	return undocumented
}

// description returns the comment of a key, above it or on its line. It omits an example, which follows an empty
// comment line.
func description(key, value *yaml.Node) string {
	above, _, _ := strings.Cut(key.HeadComment, "\n#\n")
	text := strings.Join([]string{above, key.LineComment, value.LineComment}, " ")
	return strings.ReplaceAll(strings.Join(strings.Fields(strings.ReplaceAll(text, "#", " ")), " "), "|", `\|`)
}

// flow formats a value on one line.
func flow(value *yaml.Node) string {
	switch value.Kind {
	case yaml.MappingNode:
		var items []string
		for i := 0; i+1 < len(value.Content); i += 2 {
			items = append(items, value.Content[i].Value+": "+flow(value.Content[i+1]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	case yaml.SequenceNode:
		var items []string
		for _, item := range value.Content {
			items = append(items, flow(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	if value.Style&yaml.DoubleQuotedStyle != 0 {
		return `"` + value.Value + `"`
	}
	return value.Value
}
