package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// A row is one figure, with the aim for it and what NVIDIA's plugin took.
type row struct{ what, value, aim, nvidia string }

type table []row

func (t *table) add(what, value, aim, nvidia string) { *t = append(*t, row{what, value, aim, nvidia}) }

func (t table) write(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprint(out, "\n\tgpucdi\taim\tNVIDIA 0.20 *\n")
	for _, r := range t {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", r.what, r.value, r.aim, r.nvidia)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, "\nTimes are medians. * k8s-device-plugin 0.20, measured once on another machine of this kind.\n")
	return err
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func micros(d time.Duration) string { return fmt.Sprintf("%d µs", d.Microseconds()) }

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// above writes a median difference.
func above(d time.Duration, write func(time.Duration) string) string {
	if d < 0 {
		return write(d)
	}
	return "+" + write(d)
}
