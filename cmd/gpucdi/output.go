package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// The output formats. A default table fits in 120 columns, except for its last column.
const (
	formatTable = "table"
	formatWide  = "wide" // a table with all columns
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// outputFormat is the value of --output.
type outputFormat struct {
	name    string
	allowed []string
}

// register adds --output to a command. The first format is the default.
func (o *outputFormat) register(cmd *cobra.Command, formats ...string) {
	o.name, o.allowed = formats[0], formats
	cmd.Flags().VarP(o, "output", "o", "output format: "+strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func (o *outputFormat) String() string { return o.name }

// Type implements pflag.Value.
func (o *outputFormat) Type() string { return "format" }

// Set implements pflag.Value.
func (o *outputFormat) Set(name string) error {
	if !slices.Contains(o.allowed, name) {
		return fmt.Errorf("must be one of %s", strings.Join(o.allowed, ", "))
	}
	o.name = name
	return nil
}

// structured reports whether the format is JSON or YAML.
func (o *outputFormat) structured() bool { return o.name == formatJSON || o.name == formatYAML }

// encode writes a value as JSON, or as YAML with the keys of the JSON. JSON is always escaped, so that it is safe for
// terminals. YAML is escaped only on a terminal, since in some YAML string styles escapes would change the value.
func (o *outputFormat) encode(w io.Writer, value any) error {
	var text string
	if o.name == formatJSON {
		data, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return fmt.Errorf("encoding JSON: %w", err)
		}
		text = escapeJSON(string(data)) + "\n"
	} else {
		data, err := marshalYAML(value)
		if err != nil {
			return fmt.Errorf("encoding YAML: %w", err)
		}
		if text = string(data); isTerminal(w) {
			text = indented(text, 0)
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

// escapeJSON escapes the non-graphic characters in JSON, which occur only in strings. encoding/json escapes only some
// of them.
func escapeJSON(text string) string {
	var escaped strings.Builder
	for _, r := range text {
		if r == '\n' || unicode.IsGraphic(r) {
			escaped.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&escaped, `\u%04x`, unit)
		}
	}
	return escaped.String()
}

// marshalYAML encodes a value with the keys and omissions of its JSON.
func marshalYAML(value any) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var generic any
	if err := yaml.Unmarshal(data, &generic); err != nil { // JSON is valid YAML
		return nil, err
	}
	return yaml.Marshal(generic)
}

// painterOf returns a painter that uses colors only on a terminal, and not if NO_COLOR is set.
func painterOf(w io.Writer) painter {
	if isTerminal(w) && os.Getenv("NO_COLOR") == "" {
		return colored
	}
	return plain
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
