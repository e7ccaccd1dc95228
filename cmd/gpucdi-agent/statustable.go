package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpucdi/gpucdi/cmd/internal/cli"
	"github.com/gpucdi/gpucdi/status"
)

// colour is what a cell of a table says at a glance.
type colour string

// The escapes are of one length, so that a column of cells that all have one
// lines up.
const (
	neutral  colour = "\x1b[39m"
	good     colour = "\x1b[32m"
	doubtful colour = "\x1b[33m"
	bad      colour = "\x1b[31m"
)

func plain(text string, _ colour) string { return text }

func coloured(text string, c colour) string { return string(c) + text + string(neutral) }

// writeStatusTables writes the chain from the driver to the kubelet, and the
// devices.
func writeStatusTables(w io.Writer, n status.Node, wide bool, paint func(string, colour) string) error {
	fmt.Fprintf(w, "Node %s, gpucdi %s\n\n", cmp.Or(n.Name, "-"), n.Version)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "LINK\t%s\tDETAIL\n", paint("STATE", neutral))
	for _, l := range chain(n) {
		fmt.Fprintf(table, "%s\t%s\t%s\n", l.name, state(l.trouble, "ok", "trouble", paint), cmp.Or(l.trouble, l.detail))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	columns := columnsOf(wide, paint)
	row := func(cell func(column) string) {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = cell(c)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	row(func(c column) string { return c.head })
	for _, d := range n.Devices {
		row(func(c column) string { return c.cell(n, d) })
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, u := range n.Unreadable {
		fmt.Fprintf(w, "GPU %d does not tell what it is: %s\n", u.Index, u.Fault)
	}
	if n.Kubelet.PodsTrouble != "" {
		fmt.Fprintf(w, "Which pods hold devices may be out of date: %s\n", n.Kubelet.PodsTrouble)
	}
	return nil
}

// link is one of those that have to hold for a pod to get a GPU.
type link struct{ name, detail, trouble string }

func chain(n status.Node) []link {
	links := []link{
		{"config", fmt.Sprintf("%s, read %s ago", cmp.Or(n.Config.Path, "no file, all defaults"), age(n.Config.Loaded)), n.Config.Trouble},
		{"driver", fmt.Sprintf("%s, CUDA %s, root %s", n.Driver.Version, n.Driver.CUDA, n.Driver.Root), n.Driver.Trouble},
		{"spec", fmt.Sprintf("%s, %d devices", n.Spec.Path, n.Spec.Devices), n.Spec.Trouble},
		{"runtime", fmt.Sprintf("%s %s, CDI on, reads %s", n.Runtime.Name, n.Runtime.Version, strings.Join(n.Runtime.SpecDirs, ", ")), n.Runtime.Trouble},
	}
	for _, r := range n.Kubelet.Resources {
		l := link{name: "kubelet", detail: fmt.Sprintf("%s registered for %s", r.Name, age(r.Registered))}
		if r.Trouble != "" {
			l.trouble = r.Name + ": " + r.Trouble
		}
		links = append(links, l)
	}
	return links
}

// column is one of the table of devices.
type column struct {
	head string
	cell func(status.Node, status.Device) string
}

func columnsOf(wide bool, paint func(string, colour) string) []column {
	gpu := func(cell func(status.GPU) string) func(status.Node, status.Device) string {
		return func(n status.Node, d status.Device) string { return cell(n.GPU(d.GPU)) }
	}
	columns := []column{
		{"GPU", func(_ status.Node, d status.Device) string { return d.Index }},
		{"DEVICE", func(_ status.Node, d status.Device) string { return d.ID }},
		{"PRODUCT", func(n status.Node, d status.Device) string { return cmp.Or(n.Product(d), "-") }},
		{"MEMORY", func(n status.Node, d status.Device) string {
			return fmt.Sprintf("%.1f GiB", float64(n.MemoryBytes(d))/(1<<30))
		}},
		{"RESOURCE", func(_ status.Node, d status.Device) string { return offered(d) }},
		{paint("HEALTH", neutral), func(_ status.Node, d status.Device) string {
			return state(reason(d), "healthy", "unhealthy", paint)
		}},
		{"POD", func(_ status.Node, d status.Device) string { return holders(d) }},
	}
	if wide {
		columns = append(columns, []column{
			{"PCI", gpu(func(g status.GPU) string { return cmp.Or(g.PCIBusID, "-") })},
			{"NUMA", gpu(func(g status.GPU) string { return cli.NUMA(g.NUMANode) })},
			{"LOAD", gpu(func(g status.GPU) string { return measured(g.Telemetry.Utilization, 100, "%") })},
			{"TEMPERATURE", gpu(func(g status.GPU) string { return measured(g.Telemetry.Temperature, 1, " °C") })},
			{"POWER", gpu(func(g status.GPU) string { return measured(g.Telemetry.Power, 1, " W") })},
			{"SINCE", func(_ status.Node, d status.Device) string { return since(d.Fault) }},
			{"HEALS", func(_ status.Node, d status.Device) string { return heals(d.Fault) }},
		}...)
	}
	return append(columns, column{"REASON", func(_ status.Node, d status.Device) string { return cmp.Or(reason(d), "-") }})
}

func state(trouble, well, ill string, paint func(string, colour) string) string {
	if trouble != "" {
		return paint(ill, bad)
	}
	return paint(well, good)
}

func reason(d status.Device) string {
	if d.Fault == nil {
		return ""
	}
	return d.Fault.Reason
}

func since(f *status.Fault) string {
	if f == nil {
		return "-"
	}
	return age(f.Since)
}

func heals(f *status.Fault) string {
	if f == nil {
		return "-"
	}
	return cmp.Or(f.Heals, "-")
}

// offered is the resource of a device, and how many times it is offered as that.
func offered(d status.Device) string {
	if n := len(d.Replicas); n > 0 {
		return fmt.Sprintf("%s ×%d", d.Resource, n)
	}
	return d.Resource
}

func holders(d status.Device) string {
	var names []string
	for _, h := range d.HeldBy {
		names = append(names, h.Namespace+"/"+h.Pod+"/"+h.Container)
	}
	return cmp.Or(strings.Join(names, ", "), "-")
}

func measured(value *float64, times float64, unit string) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%s", *value*times, unit)
}

// age is how long ago a moment was.
func age(since time.Time) string { return time.Since(since).Round(time.Second).String() }
