package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/gpucdi/gpucdi/gpu"
)

// Tables, messages and errors pass through this file, since they may contain text from hardware, a container runtime or
// the network: control characters could change the terminal, and newlines could forge lines.

// printable escapes the characters of a text that are not graphic, as in a Go string literal: control
// characters, newlines, bidirectional marks, and invalid UTF-8.
func printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return text
	}
	quoted := strconv.QuoteToGraphic(text)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(quoted[1 : len(quoted)-1])
}

// line writes exactly one line, made printable.
func line(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, printable(fmt.Sprintf(format, args...)))
}

// indented makes each line of a text printable, and indents all lines after the first, so that they cannot be mistaken
// for other output.
func indented(text string, indent int) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n"+strings.Repeat(" ", indent))
}

// raw is constant text with color escapes, which is not made printable.
type raw string

// tableWriter writes a table with aligned columns.
type tableWriter struct{ columns *tabwriter.Writer }

// newTable returns an empty table, which Flush writes.
func newTable(w io.Writer) tableWriter { return tableWriter{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Row adds a row. Cells are made printable, except raw ones.
func (t tableWriter) Row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		if text, isRaw := cell.(raw); isRaw {
			texts[i] = string(text)
			continue
		}
		texts[i] = printable(fmt.Sprint(cell))
	}
	fmt.Fprintln(t.columns, strings.Join(texts, "\t"))
}

// Flush writes the rows.
func (t tableWriter) Flush() error { return t.columns.Flush() }

// numa returns the number of a NUMA node, or "-" if it is unknown.
func numa(node int) string {
	if node == gpu.NUMAUnknown {
		return "-"
	}
	return strconv.Itoa(node)
}
