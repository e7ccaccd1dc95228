package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

// color is the terminal escape sequence of a foreground color.
type color string

// All sequences have the same length, so that columns of colored cells are aligned.
const (
	neutral color = "\x1b[39m"
	green   color = "\x1b[32m"
	yellow  color = "\x1b[33m"
	red     color = "\x1b[31m"
)

// painter colors a constant word.
type painter func(word string, c color) raw

func plain(word string, _ color) raw { return raw(word) }

func colored(word string, c color) raw { return raw(string(c) + word + string(neutral)) }

// writeStatusTables writes a table of the components and one of the devices. Tables of shares and of containers whose
// GPUs differ from their allocations, and lines with notes, follow if there are any.
func writeStatusTables(w io.Writer, n status.Node, wide bool, paint painter) error {
	line(w, "Node %s, gpucdi %s", cmp.Or(n.Name, "-"), n.Version)
	fmt.Fprintln(w)
	table := newTable(w)
	table.Row("COMPONENT", paint("STATE", neutral), "DETAIL")
	for _, c := range components(n) {
		table.Row(c.name, c.state(paint), cmp.Or(joined(c.err, c.warning), c.detail))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	columns := deviceColumns(wide, paint)
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
	if err := writeShares(w, n.Devices, table); err != nil {
		return err
	}
	if err := writeContainers(w, n, table, paint); err != nil {
		return err
	}
	if len(n.Excluded) > 0 {
		var names []string
		for _, e := range n.Excluded {
			names = append(names, fmt.Sprintf("%s (%s)", e.Index, e.Rule))
		}
		line(w, "Excluded by the config: %s", strings.Join(names, ", "))
	}
	if n.CordonsError != "" {
		line(w, "Cordons may be incomplete: %s", n.CordonsError)
	}
	for _, u := range n.Unreadable {
		line(w, "GPU %d cannot be identified: %s", u.Index, u.Fault.String())
	}
	if reasons := gpu.MemoryLimitReasons(n.Inventory()); len(reasons) > 0 {
		line(w, "GPU memory of pods cannot be limited: %s", strings.Join(reasons, "; "))
	}
	writeIsolation(w, n.Devices)
	if n.Kubelet.PodsError != "" {
		line(w, "Column POD may be stale: %s", n.Kubelet.PodsError)
	}
	return nil
}

// writeContainers writes the table of containers whose GPUs differ from their allocations, and a line with the
// privileged ones.
func writeContainers(w io.Writer, n status.Node, t tableWriter, paint painter) error {
	containers := n.Containers
	if len(containers.Foreign)+len(containers.Lacking) > 0 {
		fmt.Fprintln(w)
		t.Row("CONTAINER", "GPU", paint("STATE", neutral), "REMEDY")
		for _, c := range containers.Lacking {
			t.Row(c.Name, indexes(n, c.GPUs), paint("lacks its GPU", red), "delete the pod; it was created while CDI was disabled")
		}
		for _, c := range containers.Foreign {
			remedy := "stop it, or reserve its GPUs with allocation.respectForeignContainers"
			if c.InPod {
				remedy = "no action required if a ResourceClaim allocated it; otherwise request GPUs as a resource"
			}
			t.Row(c.Name, indexes(n, c.GPUs), paint("not allocated", yellow), remedy)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(containers.Privileged) > 0 {
		line(w, "Privileged containers, which can use all GPUs: %s", strings.Join(containers.Privileged, ", "))
	}
	if containers.Error != "" {
		line(w, "The GPUs of containers are unknown or stale: %s", containers.Error)
	}
	return nil
}

// indexes returns the indexes of GPUs and MIG devices, or the UUIDs of those that are not in the table of devices.
func indexes(n status.Node, uuids []string) string {
	var names []string
	for _, uuid := range uuids {
		name := uuid
		for _, d := range n.Devices {
			if d.ID == uuid {
				name = d.Index
			}
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// component is a row of the first table. An error or a warning replaces detail.
type component struct{ name, detail, err, warning string }

func (c component) state(paint painter) raw {
	switch {
	case c.err != "":
		return paint("error", red)
	case c.warning != "":
		return paint("warning", yellow)
	}
	return paint("ok", green)
}

func components(n status.Node) []component {
	config := "no file, all defaults"
	if n.Config.Path != "" {
		config = fmt.Sprintf("%s, read %s ago", n.Config.Path, age(n.Config.Loaded))
	}
	all := []component{
		{name: "config", detail: config, err: joined(n.Config.Error, n.Config.LabelsError)},
		{name: "driver", detail: fmt.Sprintf("%s, CUDA %s, root %s", n.Driver.Version, n.Driver.CUDA, n.Driver.Root), err: n.Driver.Error},
		{name: "spec", detail: fmt.Sprintf("%s, %d devices", n.Spec.Path, n.Spec.Devices), err: n.Spec.Error},
		{name: "runtime", detail: fmt.Sprintf("%s %s, CDI enabled, reads %s", n.Runtime.Name, n.Runtime.Version, strings.Join(n.Runtime.SpecDirs, ", ")), err: n.Runtime.Error},
	}
	for _, r := range n.Kubelet.Resources {
		c := component{name: "kubelet", detail: fmt.Sprintf("%s registered for %s", r.Name, age(r.Registered))}
		if r.Error != "" {
			c.err = r.Name + ": " + r.Error
		}
		all = append(all, c)
	}
	if d := n.DRA; d != nil {
		all = append(all, component{name: "dra", detail: fmt.Sprintf("%s registered for %s", d.Driver, age(d.Registered)), err: d.Error},
			slicesComponent(d.Slices))
	}
	if i := n.NRI; i != nil {
		all = append(all, component{name: "nri", detail: fmt.Sprintf("%s, containers checked for %s", i.Runtime, age(i.Connected)), err: i.Error})
	}
	return all
}

func slicesComponent(s status.Slices) component {
	c := component{name: "slices", detail: fmt.Sprintf("%d devices", s.Devices), err: s.Error}
	if len(s.Foreign) > 0 {
		c.err = joined(c.err, fmt.Sprintf("another program wrote ResourceSlices of this driver: %s; run only one driver of this name on a node", strings.Join(s.Foreign, ", ")))
	}
	if len(s.Dropped) > 0 { // devices are allocated without these fields
		c.warning = fmt.Sprintf("the API server does not store %s; enable the feature gates", strings.Join(s.Dropped, ", "))
	}
	return c
}

// joined joins two texts, either of which may be empty.
func joined(one, two string) string {
	if one == "" || two == "" {
		return one + two
	}
	return one + "; " + two
}

// column is a column of the table of devices.
type column struct {
	head any
	cell func(status.Node, status.Device) any
}

func deviceColumns(wide bool, paint painter) []column {
	gpu := func(cell func(status.GPU) string) func(status.Node, status.Device) any {
		return func(n status.Node, d status.Device) any { return cell(n.GPU(d.GPU)) }
	}
	columns := []column{
		{"GPU", func(_ status.Node, d status.Device) any { return d.Index }},
		{"DEVICE", func(_ status.Node, d status.Device) any { return d.ID }},
	}
	if wide {
		columns = append(columns, []column{
			{"PRODUCT", func(n status.Node, d status.Device) any { return cmp.Or(n.Product(d), "-") }},
			{"MEMORY", func(n status.Node, d status.Device) any { return gibibytes(n.MemoryBytes(d)) }},
		}...)
	}
	columns = append(columns, []column{
		{"RESOURCE", func(_ status.Node, d status.Device) any { return resource(d) }},
		{paint("HEALTH", neutral), func(_ status.Node, d status.Device) any { return health(d, paint) }},
		{"POD", func(_ status.Node, d status.Device) any { return pods(d, wide) }},
	}...)
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
	return append(columns, column{"REASON", func(_ status.Node, d status.Device) any { return reason(d, wide) }})
}

func health(d status.Device, paint painter) raw {
	switch d.Health() {
	case status.Healthy:
		return paint("healthy", green)
	case status.Waiting:
		return paint("waiting", yellow)
	case status.Unhealthy:
		return paint("unhealthy", red)
	}
	return paint("draining", yellow)
}

// reason returns why a device is not available. A wide table has the remedy in another column.
func reason(d status.Device, wide bool) string {
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

// resource returns the resource of a device and, if it is shared, the number of replicas.
func resource(d status.Device) string {
	if n := len(d.Replicas); n > 0 {
		return fmt.Sprintf("%s ×%d", d.Resource, n)
	}
	return d.Resource
}

// podWidth bounds the column POD, so that a default table fits in 120 characters, except for its last column.
const podWidth = 28

// pods returns the containers that a device is allocated to, as namespace/pod/container. A default table has
// the first one and the number of others.
func pods(d status.Device, wide bool) string {
	var names []string
	for _, h := range d.AllocatedTo {
		names = append(names, h.Namespace+"/"+h.Pod+"/"+h.Container)
	}
	switch {
	case len(names) == 0:
		return "-"
	case wide:
		return strings.Join(names, ", ")
	}
	others := ""
	if len(names) > 1 {
		others = fmt.Sprintf(" +%d", len(names)-1)
	}
	return truncate(names[0], podWidth-len(others)) + others
}

// truncate shortens a text to at most width characters; a shortened text ends with an ellipsis.
func truncate(text string, width int) string {
	text = printable(text)
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}

func measured(value *float64, times float64, unit string) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%s", *value*times, unit)
}

// age returns the time since a moment, rounded to seconds.
func age(moment time.Time) string { return time.Since(moment).Round(time.Second).String() }
