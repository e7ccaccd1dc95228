package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/gpu"
)

func newListCommand() *cobra.Command {
	var (
		where  hostFlags
		format string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the node's GPUs, their MIG devices and how they are linked",
		Args:  checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return usage(fmt.Errorf("--format %q is neither table nor json", format))
			}
			reading, err := read(cmd.Context(), where)
			if err != nil {
				return err
			}
			if format == "json" {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(reading.Inventory)
			}
			return writeTables(cmd.OutOrStdout(), reading.Inventory)
		},
	}
	where.Register(cmd.Flags())
	cmd.Flags().StringVar(&format, "format", "table", "table or json")
	return cmd
}

func writeTables(w io.Writer, inv *gpu.Inventory) error {
	line(w, "Driver %s, CUDA %s", inv.Driver.Version, inv.Driver.CUDA)
	fmt.Fprintln(w)
	table := newTable(w)
	table.Row("INDEX", "UUID", "PRODUCT", "MEMORY", "NODE", "PCI", "NUMA", "ARCHITECTURE", "MIG", "FAULT")
	for _, g := range inv.GPUs {
		table.Row(g.Index, g.UUID, cmp.Or(g.Product, "-"), gibibytes(g.MemoryBytes), nodeOf(g), g.PCIBusID,
			numa(g.NUMANode), fmt.Sprintf("%s %s", g.Architecture, g.ComputeCapability), g.MIG, cmp.Or(g.Fault.String(), "-"))
	}
	for _, u := range inv.Unreadable {
		table.Row(u.Index, "-", "-", "-", "-", "-", "-", "-", "-", u.Fault.String())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(inv.GPUs, func(g gpu.GPU) bool { return len(g.MIGDevices) > 0 }) {
		if err := writeMIG(w, inv); err != nil {
			return err
		}
	}
	if len(inv.GPUs) < 2 {
		return nil
	}
	return writeLinks(w, inv)
}

// nodeOf returns the path of a GPU's device node, or "-" if the driver does not report which it is.
func nodeOf(g gpu.GPU) string {
	if g.Minor == gpu.MinorUnknown {
		return "-"
	}
	return fmt.Sprint("/dev/nvidia", g.Minor)
}

func gibibytes(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// writeMIG shows the MIG devices. GI and CI are the GPU instance and the compute
// instance, as in nvidia-smi mig.
func writeMIG(w io.Writer, inv *gpu.Inventory) error {
	fmt.Fprintln(w)
	table := newTable(w)
	table.Row("MIG", "UUID", "PROFILE", "MEMORY", "GI", "CI", "SLICES", "FAULT")
	for _, g := range inv.GPUs {
		for _, m := range g.MIGDevices {
			table.Row(fmt.Sprintf("%d:%d", g.Index, m.Index), m.UUID, cmp.Or(m.Profile, "-"), gibibytes(m.MemoryBytes),
				m.GPUInstance, m.ComputeInstance, span(m.Placement), cmp.Or(m.Fault.String(), "-"))
		}
	}
	return table.Flush()
}

// span is the memory slices of a placement, the first and the last.
func span(p gpu.Placement) string {
	if p.Size == 0 {
		return "-"
	}
	return fmt.Sprintf("%d-%d", p.Start, p.Start+p.Size-1)
}

// writeLinks shows the link between each two GPUs, as nvidia-smi topo -m does.
func writeLinks(w io.Writer, inv *gpu.Inventory) error {
	fmt.Fprintln(w)
	table := newTable(w)
	head := []any{"LINKS"}
	for _, g := range inv.GPUs {
		head = append(head, g.Index)
	}
	table.Row(head...)
	for _, from := range inv.GPUs {
		to := map[string]gpu.Link{}
		for _, l := range from.Links {
			to[l.Peer] = l
		}
		row := []any{from.Index}
		for _, peer := range inv.GPUs {
			row = append(row, linkName(to[peer.UUID], from.UUID == peer.UUID))
		}
		table.Row(row...)
	}
	return table.Flush()
}

func linkName(l gpu.Link, itself bool) string {
	switch {
	case itself:
		return "X"
	case l.NVLinks > 0:
		return "NV" + strconv.Itoa(l.NVLinks)
	default:
		return l.PCIe.String()
	}
}
