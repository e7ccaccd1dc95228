package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func (s sim) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the driver version, and the GPUs with their MIG devices",
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) { return table(d.State()) })
		},
	}
}

// table returns a line for the driver and a table of the GPUs.
func table(state simdriver.State) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "driver %s", state.Version)
	if state.Unloaded {
		out.WriteString(", unloaded")
	}
	out.WriteString("\n")
	rows := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "GPU\tUUID\tSTATE\tMIG")
	for _, g := range original.GPUs {
		mig := "-"
		if present := state.GPU(g.UUID); present != nil && present.MIGMode == 1 {
			mig = cmp.Or(strings.Join(present.Profiles(), ","), "not partitioned")
		}
		fmt.Fprintf(rows, "%d\t%s\t%s\t%s\n", g.Minor, g.UUID, condition(state, g.UUID), mig)
	}
	err := rows.Flush()
	return strings.TrimSuffix(out.String(), "\n"), err
}

func condition(state simdriver.State, uuid string) string {
	g := state.GPU(uuid)
	switch {
	case g == nil:
		return "removed"
	case g.Lost:
		return "lost"
	case slices.ContainsFunc(state.Faults, func(f simdriver.Fault) bool { return f.GPU == uuid }):
		return "hanging"
	}
	return "ok"
}
