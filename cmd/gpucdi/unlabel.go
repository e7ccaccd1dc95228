package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/labels"
)

func newUnlabelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unlabel",
		Short: "Remove the labels of gpucdi from all nodes",
		Long: `Remove the labels that agents have set on nodes. Run it after the agents have
been removed: an agent that stops keeps its labels, since another one may replace
it. The command requires a service account that may list and patch nodes; helm
uninstall runs it.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := cluster.InCluster()
			if err != nil {
				return fmt.Errorf("removing node labels: %w", err)
			}
			return client.RemoveLabels(cmd.Context(), labels.Machine)
		},
	}
}
