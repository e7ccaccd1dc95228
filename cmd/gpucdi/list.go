package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cmd/internal/cli"
	"github.com/gpucdi/gpucdi/gpu"
)

func newListCommand() *cobra.Command {
	var (
		where  cli.Look
		format string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the node's GPUs, their MIG devices and how they are linked",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return cli.Usage(fmt.Errorf("--format %q is neither table nor json", format))
			}
			reading, err := read(cmd.Context(), where, nil)
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
	fmt.Fprintf(w, "Driver %s, CUDA %s\n\n", inv.Driver.Version, inv.Driver.CUDA)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "INDEX\tUUID\tPRODUCT\tMEMORY\tNODE\tPCI\tNUMA\tARCHITECTURE\tMIG\tFAULT")
	for _, g := range inv.GPUs {
		fmt.Fprintf(table, "%d\t%s\t%s\t%.1f GiB\t/dev/nvidia%d\t%s\t%s\t%s %s\t%s\t%s\n",
			g.Index, g.UUID, cmp.Or(g.Product, "-"), float64(g.MemoryBytes)/(1<<30), g.Minor, g.PCIBusID,
			cli.NUMA(g.NUMANode), g.Architecture, g.ComputeCapability, g.MIG, cmp.Or(g.Fault, "-"))
	}
	for _, u := range inv.Unreadable {
		fmt.Fprintf(table, "%d\t-\t-\t-\t-\t-\t-\t-\t-\t%s\n", u.Index, u.Fault)
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

// writeMIG shows what the GPUs are cut into. GI and CI are the GPU instance and
// the compute instance, as nvidia-smi mig calls them.
func writeMIG(w io.Writer, inv *gpu.Inventory) error {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MIG\tUUID\tPROFILE\tMEMORY\tGI\tCI\tSLICES\tFAULT")
	for _, g := range inv.GPUs {
		for _, m := range g.MIGDevices {
			fmt.Fprintf(table, "%d:%d\t%s\t%s\t%.1f GiB\t%d\t%d\t%s\t%s\n",
				g.Index, m.Index, m.UUID, cmp.Or(m.Profile, "-"), float64(m.MemoryBytes)/(1<<30),
				m.GPUInstance, m.ComputeInstance, span(m.Placement), cmp.Or(m.Fault, "-"))
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

// writeLinks shows how each GPU reaches each other, as nvidia-smi topo -m does.
func writeLinks(w io.Writer, inv *gpu.Inventory) error {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "LINKS")
	for _, g := range inv.GPUs {
		fmt.Fprintf(table, "\t%d", g.Index)
	}
	fmt.Fprintln(table)
	for _, from := range inv.GPUs {
		to := map[string]gpu.Link{}
		for _, l := range from.Links {
			to[l.Peer] = l
		}
		fmt.Fprint(table, from.Index)
		for _, peer := range inv.GPUs {
			fmt.Fprintf(table, "\t%s", linkName(to[peer.UUID], from.UUID == peer.UUID))
		}
		fmt.Fprintln(table)
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
