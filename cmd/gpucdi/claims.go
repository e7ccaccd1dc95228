package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cluster"
)

func newClaimsCommand() *cobra.Command {
	var driver string
	cmd := &cobra.Command{
		Use:   "claims",
		Short: "List the ResourceClaims in use on nodes that gpucdi serves",
		Long: `List the ResourceClaims that pods use on nodes whose ResourceSlices gpucdi wrote,
and fail if there are any: without an agent, their pods cannot terminate. The
command requires a service account that may list claims and get slices; helm
uninstall runs it before it deletes the agents.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listClaims(cmd.Context(), cmd.OutOrStdout(), driver)
		},
	}
	cmd.Flags().StringVar(&driver, "dra-driver-name", "gpu.nvidia.com", "name of the DRA driver")
	return cmd
}

func listClaims(ctx context.Context, out io.Writer, driver string) error {
	client, err := cluster.InCluster()
	if err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	claims, err := client.ClaimsInUse(ctx, driver)
	if err != nil || len(claims) == 0 {
		return err
	}
	table := newTable(out)
	table.Row("NODE", "NAMESPACE", "CLAIM", "PODS")
	for _, c := range claims {
		var pods []string
		for _, consumer := range c.Consumers {
			pods = append(pods, consumer.Name)
		}
		node := c.Devices[0].Pool // a claim has devices of one node; the pool has the name of the node
		table.Row(node, c.Namespace, c.Name, strings.Join(pods, ", "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return fmt.Errorf("claims in use: %d; delete their pods first, because they cannot terminate without an agent", len(claims))
}
