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

// Text that a terminal receives may come from hardware, a runtime or the network. All
// of it passes through this file: a control character would be obeyed by the terminal,
// and a newline would forge a line.

// printable escapes every character of a text that is not graphic, as Go does in a
// string: control characters, newlines, marks that reverse the direction of the text,
// and bytes that are no UTF-8.
func printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return text
	}
	quoted := strconv.QuoteToGraphic(text)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(quoted[1 : len(quoted)-1])
}

// line writes one line, whatever the arguments contain.
func line(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, printable(fmt.Sprintf(format, args...)))
}

// indented returns a text of several lines. All but the first are indented, so that
// none of them passes for a line of another kind.
func indented(text string, indent int) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n"+strings.Repeat(" ", indent))
}

// raw is text that is printed as it is: of this program's own, with the escapes of a
// colour.
type raw string

// tableWriter writes a table with aligned columns.
type tableWriter struct{ columns *tabwriter.Writer }

// newTable returns an empty table, which Flush writes.
func newTable(w io.Writer) tableWriter { return tableWriter{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Row adds a row. Every cell is made printable, except raw ones.
func (t tableWriter) Row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		if text, is := cell.(raw); is {
			texts[i] = string(text)
			continue
		}
		texts[i] = printable(fmt.Sprint(cell))
	}
	fmt.Fprintln(t.columns, strings.Join(texts, "\t"))
}

// Flush writes the rows.
func (t tableWriter) Flush() error { return t.columns.Flush() }

// numa returns the number of a NUMA node as tables show it.
func numa(node int) string {
	if node == gpu.NUMAUnknown {
		return "-"
	}
	return strconv.Itoa(node)
}
