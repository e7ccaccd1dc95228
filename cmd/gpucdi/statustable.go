package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

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

// painter gives a word of this program's own its colour.
type painter func(word string, c colour) raw

func plain(word string, _ colour) raw { return raw(word) }

func coloured(word string, c colour) raw { return raw(string(c) + word + string(neutral)) }

// writeStatusTables writes the chain from the driver to the kubelet, and the
// devices.
func writeStatusTables(w io.Writer, n status.Node, wide bool, paint painter) error {
	line(w, "Node %s, gpucdi %s", cmp.Or(n.Name, "-"), n.Version)
	fmt.Fprintln(w)
	table := newTable(w)
	table.Row("LINK", paint("STATE", neutral), "DETAIL")
	for _, l := range chain(n) {
		table.Row(l.name, state(l.trouble, "ok", "trouble", paint), cmp.Or(l.trouble, l.detail))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	columns := columnsOf(wide, paint)
	row := func(cell func(column) any) {
		cells := make([]any, len(columns))
		for i, c := range columns {
			cells[i] = cell(c)
		}
		table.Row(cells...)
	}
	row(func(c column) any { return c.head })
	for _, d := range n.Devices {
		row(func(c column) any { return c.cell(n, d) })
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, u := range n.Unreadable {
		line(w, "GPU %d cannot be identified: %s", u.Index, u.Fault.String())
	}
	if n.Kubelet.PodsTrouble != "" {
		line(w, "Which pods hold devices may be out of date: %s", n.Kubelet.PodsTrouble)
	}
	return nil
}

// link is one of those that have to hold for a pod to get a GPU.
type link struct{ name, detail, trouble string }

func chain(n status.Node) []link {
	links := []link{
		{"config", fmt.Sprintf("%s, read %s ago", cmp.Or(n.Config.Path, "no file, all defaults"), age(n.Config.Loaded)), joined(n.Config.Trouble, n.Config.LabelsTrouble)},
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

// joined is what there is of two texts.
func joined(one, two string) string {
	if one == "" || two == "" {
		return one + two
	}
	return one + "; " + two
}

// column is one of the table of devices.
type column struct {
	head any
	cell func(status.Node, status.Device) any
}

func columnsOf(wide bool, paint painter) []column {
	gpu := func(cell func(status.GPU) string) func(status.Node, status.Device) any {
		return func(n status.Node, d status.Device) any { return cell(n.GPU(d.GPU)) }
	}
	columns := []column{
		{"GPU", func(_ status.Node, d status.Device) any { return d.Index }},
		{"DEVICE", func(_ status.Node, d status.Device) any { return d.ID }},
		{"PRODUCT", func(n status.Node, d status.Device) any { return cmp.Or(n.Product(d), "-") }},
		{"MEMORY", func(n status.Node, d status.Device) any {
			return fmt.Sprintf("%.1f GiB", float64(n.MemoryBytes(d))/(1<<30))
		}},
		{"RESOURCE", func(_ status.Node, d status.Device) any { return offered(d) }},
		{paint("HEALTH", neutral), func(_ status.Node, d status.Device) any {
			return health(d, paint)
		}},
		{"POD", func(_ status.Node, d status.Device) any { return holders(d) }},
	}
	if wide {
		columns = append(columns, []column{
			{"PCI", gpu(func(g status.GPU) string { return cmp.Or(g.PCIBusID, "-") })},
			{"NUMA", gpu(func(g status.GPU) string { return numa(g.NUMANode) })},
			{"LOAD", gpu(func(g status.GPU) string { return measured(g.Telemetry.Utilization, 100, "%") })},
			{"TEMPERATURE", gpu(func(g status.GPU) string { return measured(g.Telemetry.Temperature, 1, " °C") })},
			{"POWER", gpu(func(g status.GPU) string { return measured(g.Telemetry.Power, 1, " W") })},
			{"SINCE", func(_ status.Node, d status.Device) any { return since(d) }},
			{"REMEDY", func(_ status.Node, d status.Device) any { return cmp.Or(d.Fault.Remedy, "-") }},
		}...)
	}
	return append(columns, column{"REASON", func(_ status.Node, d status.Device) any { return explain(d, wide) }})
}

func state(trouble, well, ill string, paint painter) raw {
	if trouble != "" {
		return paint(ill, bad)
	}
	return paint(well, good)
}

func health(d status.Device, paint painter) raw {
	switch {
	case d.Healthy():
		return paint("healthy", good)
	case d.State == "waiting":
		return paint("waiting", doubtful)
	case d.Fault.None():
		return paint("draining", doubtful)
	}
	return paint("unhealthy", bad)
}

// explain is why a device is not available, with the remedy unless that has a column of its own.
func explain(d status.Device, wide bool) string {
	switch {
	case d.Awaits != "":
		return d.Reason + "; waits for " + d.Awaits
	case wide:
		return cmp.Or(d.Fault.Message, d.Reason, "-")
	}
	return cmp.Or(d.Fault.String(), d.Reason, "-")
}

func since(d status.Device) string {
	if d.Healthy() {
		return "-"
	}
	return age(cmp.Or(d.Fault.Since, d.Since))
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
