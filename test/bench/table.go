package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// A figure is a measured value of one program: as text, and as a number to compare.
type figure struct {
	text  string
	value float64
}

// A row has the values of both programs, and the target: a ratio, or a value of gpucdi.
type row struct {
	name         string
	ours, nvidia figure
	target       string
}

// ratio is empty if a value is missing, or not positive because of noise.
func (r row) ratio() string {
	if r.ours.value <= 0 || r.nvidia.value <= 0 {
		return ""
	}
	if ratio := r.ours.value / r.nvidia.value; ratio >= 0.01 {
		return fmt.Sprintf("%.2fx", ratio)
	}
	return "<0.01x"
}

// A table compares gpucdi with one of NVIDIA's programs.
type table struct {
	nvidia string
	rows   []row
}

func (t *table) add(name string, ours, nvidia figure, target string) {
	t.rows = append(t.rows, row{name, ours, nvidia, target})
}

func (t *table) write(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(out, "\n\tgpucdi\t%s\tratio\ttarget\n", t.nvidia)
	for _, r := range t.rows {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", r.name, r.ours.text, r.nvidia.text, r.ratio(), r.target)
	}
	return out.Flush()
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
