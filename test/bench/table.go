package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A figure is a measured value of one program: as text, and as a number to compare.
type figure struct {
	text  string
	value float64
}

// A target is the largest acceptable value of gpucdi, or its largest ratio to that of the other side. The zero value
// accepts all.
type target struct {
	text  string
	value float64
	ratio float64
}

// none is the target of rows that only inform.
var none target

// ratio returns the target of a ratio.
func ratio(most float64) target { return target{text: fmt.Sprintf("%gx", most), ratio: most} }

// atMost returns the target of a duration or of a difference of durations.
func atMost(text string, most time.Duration) target {
	return target{text: text, value: float64(most)}
}

// A row has the values of both sides and the target.
type row struct {
	name        string
	ours, other figure
	target      target
	short       string // name in the summary; empty: not in it
}

// ratio returns the ratio of both values; empty if one is missing, or not positive because of noise.
func (r row) ratio() string {
	if r.ours.value <= 0 || r.other.value <= 0 {
		return ""
	}
	if ratio := r.ours.value / r.other.value; ratio >= 0.01 {
		return fmt.Sprintf("%.2fx", ratio)
	}
	return "<0.01x"
}

// missed reports whether the target is not met. The target of a ratio requires a positive value of the other
// side. The value of gpucdi may be negative, because noise may exceed a small difference.
func (r row) missed() bool {
	switch {
	case r.target.ratio > 0:
		return r.other.value <= 0 || r.ours.value > r.target.ratio*r.other.value
	case r.target.value > 0:
		return r.ours.value > r.target.value
	}
	return false
}

// A table compares gpucdi with another side: one of NVIDIA's programs, or gpucdi without DRA.
type table struct {
	other string
	rows  []*row
}

// add adds a row, and returns it for summarize.
func (t *table) add(name string, ours, other figure, target target) *row {
	r := &row{name: name, ours: ours, other: other, target: target}
	t.rows = append(t.rows, r)
	return r
}

// summarize adds the row to the summary.
func (r *row) summarize(short string) { r.short = short }

// marks are the texts that follow a target.
type marks struct{ missed string }

// plain and colored are the marks for files and for terminals.
var (
	plain   = marks{missed: "MISSED"}
	colored = marks{missed: "\x1b[31mMISSED\x1b[0m"}
)

// write writes the table unless it is empty.
func (t *table) write(w io.Writer, m marks) error {
	if len(t.rows) == 0 {
		return nil
	}
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(out, "\n\tgpucdi\t%s\tratio\ttarget\t\n", t.other)
	for _, r := range t.rows {
		mark := ""
		if r.missed() {
			mark = m.missed
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\n", r.name, r.ours.text, r.other.text, r.ratio(), r.target.text, mark)
	}
	return out.Flush()
}

// missed returns the names of the rows that do not meet their target.
func missed(tables ...*table) (names []string) {
	for _, t := range tables {
		for _, r := range t.rows {
			if r.missed() {
				names = append(names, r.name)
			}
		}
	}
	return names
}

// writeSummary writes the summarized rows as a table in Markdown.
func writeSummary(w io.Writer, tables ...*table) error {
	var lines []string
	for _, t := range tables {
		for _, r := range t.rows {
			if r.short == "" {
				continue
			}
			ours, _, _ := strings.Cut(r.ours.text, ",")
			other, _, _ := strings.Cut(r.other.text, ",")
			lines = append(lines, fmt.Sprintf("| %s | %s | %s | %s |\n", r.short, ours, other, r.ratio()))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n| | gpucdi | NVIDIA | ratio |\n|---|---|---|---|\n%s", strings.Join(lines, ""))
	return err
}

// typical returns the median.
func typical(times []time.Duration) figure {
	m := median(times)
	return figure{millis(m), float64(m)}
}

// difference returns the median of differences, with its sign.
func difference(differences []time.Duration, format func(time.Duration) string) figure {
	m := median(differences)
	f := figure{format(m), float64(m)}
	if m >= 0 {
		f.text = "+" + f.text
	}
	return f
}

// with returns the figure with more text.
func (f figure) with(format string, args ...any) figure {
	f.text += fmt.Sprintf(format, args...)
	return f
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

func micros(d time.Duration) string { return fmt.Sprintf("%d µs", d.Microseconds()) }

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
