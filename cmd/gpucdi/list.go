package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/gpu"
)

func newListCommand() *cobra.Command {
	var (
		host   hostFlags
		output outputFormat
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the GPUs of the node, their MIG devices and links",
		Args:  checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			snapshot, err := readInventory(cmd.Context(), host)
			if err != nil {
				return err
			}
			if output.structured() {
				return output.encode(cmd.OutOrStdout(), snapshot.Inventory)
			}
			return writeInventory(cmd.OutOrStdout(), snapshot.Inventory, output.name == formatWide)
		},
	}
	host.register(cmd.Flags())
	output.register(cmd, formatTable, formatWide, formatJSON, formatYAML)
	return cmd
}

// writeInventory writes tables of the GPUs, of their MIG devices if there are any, and of the links if there are
// several GPUs.
func writeInventory(w io.Writer, inv *gpu.Inventory, wide bool) error {
	line(w, "Driver %s, CUDA %s", inv.Driver.Version, inv.Driver.CUDA)
	fmt.Fprintln(w)
	if err := writeGPUs(w, inv, wide); err != nil {
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

func writeGPUs(w io.Writer, inv *gpu.Inventory, wide bool) error {
	table := newTable(w)
	row := func(index, uuid, product, memory any, onlyWide []any, mig, fault any) {
		cells := []any{index, uuid, product, memory}
		if wide {
			cells = append(cells, onlyWide...)
		}
		table.Row(append(cells, mig, fault)...)
	}
	row("INDEX", "UUID", "PRODUCT", "MEMORY", []any{"DEVICE NODE", "PCI", "NUMA", "ARCHITECTURE"}, "MIG", "FAULT")
	for _, g := range inv.GPUs {
		row(g.Index, g.UUID, cmp.Or(g.Product, "-"), gibibytes(g.MemoryBytes),
			[]any{deviceNode(g), g.PCIBusID, numa(g.NUMANode), fmt.Sprintf("%s %s", g.Architecture, g.ComputeCapability)},
			g.MIG, cmp.Or(g.Fault.String(), "-"))
	}
	for _, u := range inv.Unreadable {
		row(u.Index, "-", "-", "-", []any{"-", "-", "-", "-"}, "-", u.Fault.String())
	}
	return table.Flush()
}

// deviceNode returns the path of a GPU's device node, or "-" if the driver does not report its minor number.
func deviceNode(g gpu.GPU) string {
	if g.Minor == gpu.MinorUnknown {
		return "-"
	}
	return fmt.Sprint("/dev/nvidia", g.Minor)
}

func gibibytes(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// writeMIG writes the table of MIG devices. GI and CI are the IDs of the GPU instance and the compute instance, as in
// nvidia-smi mig.
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

// span returns the first and the last memory slice of a placement.
func span(p gpu.Placement) string {
	if p.Size == 0 {
		return "-"
	}
	return fmt.Sprintf("%d-%d", p.Start, p.Start+p.Size-1)
}

// writeLinks writes the matrix of links between GPUs, as in nvidia-smi topo -m.
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

func linkName(l gpu.Link, self bool) string {
	switch {
	case self:
		return "X"
	case l.NVLinks > 0:
		return "NV" + strconv.Itoa(l.NVLinks)
	case l.PCIe == gpu.PCIeUnknown:
		return "-"
	default:
		return l.PCIe.String()
	}
}
