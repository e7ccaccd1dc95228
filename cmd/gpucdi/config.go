package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/config"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at a NodeConfig file",
		Args:  checkArgs(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Tell all that is wrong with a NodeConfig file",
		Long: `Tell all that is wrong with a NodeConfig file, so that it can be told before
gpucdi serve is given it, as in a pipeline. The exit code is 1 when something is.`,
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := config.Load(args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: nothing is wrong\n", args[0])
			return nil
		},
	})
	return cmd
}
