package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// Text that a terminal receives may come from hardware, a runtime or the network. All
// of it passes through this file: a control character would be obeyed by the terminal,
// and a newline would forge a line.

// Printable escapes every character of a text that is not graphic, as Go does in a
// string: control characters, newlines, marks that reverse the direction of the text,
// and bytes that are no UTF-8.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return text
	}
	quoted := strconv.QuoteToGraphic(text)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(quoted[1 : len(quoted)-1])
}

// Line writes one line, whatever the arguments contain.
func Line(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, Printable(fmt.Sprintf(format, args...)))
}

// Indented returns a text of several lines. All but the first are indented, so that
// none of them passes for a line of another kind.
func Indented(text string, indent int) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Printable(lines[i])
	}
	return strings.Join(lines, "\n"+strings.Repeat(" ", indent))
}

// Raw is text that is printed as it is: of this program's own, with the escapes of a
// colour.
type Raw string

// Table writes a table with aligned columns.
type Table struct{ columns *tabwriter.Writer }

// NewTable returns an empty table, which Flush writes.
func NewTable(w io.Writer) Table { return Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Row adds a row. Every cell is made printable, except Raw.
func (t Table) Row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		if raw, is := cell.(Raw); is {
			texts[i] = string(raw)
			continue
		}
		texts[i] = Printable(fmt.Sprint(cell))
	}
	fmt.Fprintln(t.columns, strings.Join(texts, "\t"))
}

// Flush writes the rows.
func (t Table) Flush() error { return t.columns.Flush() }
