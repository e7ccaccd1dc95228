package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/config"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Validate NodeConfig files",
		Args:  checkArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Validate a NodeConfig file",
		Long: `Validate a NodeConfig file and report every problem at once. If FILE is -, read
standard input. The exit code is 1 if the file is invalid.`,
		Example: `  gpucdi config check config.yaml
  kubectl get configmap gpucdi --namespace gpucdi --output jsonpath='{.data.config\.yaml}' | gpucdi config check -`,
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if name != "-" {
				if _, err := config.Load(name); err != nil {
					return err
				}
			} else {
				name = "standard input"
				if _, err := config.Read(cmd.InOrStdin()); err != nil {
					return fmt.Errorf("reading config from standard input: %w", err)
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", name)
			return nil
		},
	})
	return cmd
}
