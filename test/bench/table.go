package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// A figure is what was measured of one program, for people and, to compare it, as a number.
type figure struct {
	text  string
	value float64
}

// A row is what was measured of both, with the aim: a ratio, or a figure that is gpucdi's own.
type row struct {
	what         string
	ours, nvidia figure
	aim          string
}

// ratio is empty where there is nothing to compare, as where a difference drowned in noise.
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

func (t *table) add(what string, ours, nvidia figure, aim string) {
	t.rows = append(t.rows, row{what, ours, nvidia, aim})
}

func (t *table) write(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(out, "\n\tgpucdi\t%s\tratio\taim\n", t.nvidia)
	for _, r := range t.rows {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", r.what, r.ours.text, r.nvidia.text, r.ratio(), r.aim)
	}
	return out.Flush()
}

// typical is the median of what something took.
func typical(times []time.Duration) figure {
	m := median(times)
	return figure{millis(m), float64(m)}
}

// beyond is by how much something took longer than what it is compared with.
func beyond(differences []time.Duration, write func(time.Duration) string) figure {
	m := median(differences)
	f := figure{write(m), float64(m)}
	if m >= 0 {
		f.text = "+" + f.text
	}
	return f
}

// with adds what else people want to know.
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
