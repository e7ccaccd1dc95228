package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/labels"
)

func newUnlabelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unlabel",
		Short: "Remove the labels, condition and taint of gpucdi from all nodes",
		Long: `Remove the labels, the condition and the taint that agents have set on nodes. Run it
after the agents have been removed: an agent that stops keeps them, since another
agent may replace it. The command requires a service account that may list and patch
nodes and, if there is a condition or taint, get nodes and patch nodes/status; helm
uninstall runs it.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := cluster.InCluster()
			if err != nil {
				return fmt.Errorf("removing labels, conditions and taints of nodes: %w", err)
			}
			return errors.Join(client.RemoveLabels(cmd.Context(), labels.Machine), client.RemoveMarks(cmd.Context()))
		},
	}
}
