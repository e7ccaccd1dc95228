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
		Short: "Remove the labels of this project from all nodes",
		Long: `Remove the labels that agents have applied to nodes. Run it when the agents are
gone: an agent that ends leaves its labels, since another one may follow. It
requires a pod that may list and patch nodes; helm uninstall runs it.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := cluster.InCluster()
			if err != nil {
				return fmt.Errorf("removing labels: %w", err)
			}
			return client.RemoveLabels(cmd.Context(), labels.Always)
		},
	}
}
