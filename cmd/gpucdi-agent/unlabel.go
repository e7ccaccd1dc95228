package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/cmd/internal/cli"
	"github.com/gpucdi/gpucdi/labels"
)

func newUnlabelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "unlabel",
		Long: `Remove the labels that agents have given to nodes, in a pod that may list and
patch nodes, when the agents are gone: they leave them, since an agent that ends
cannot know whether another one follows. helm uninstall does this.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := apiserver.InCluster()
			if err != nil {
				return fmt.Errorf("removing labels: %w", err)
			}
			nodes, err := client.Labelled(cmd.Context(), labels.Always)
			if err != nil {
				return err
			}
			var errs []error
			for _, node := range nodes {
				errs = append(errs, client.ApplyLabels(cmd.Context(), node, nil))
			}
			return errors.Join(errs...)
		},
	}
}
