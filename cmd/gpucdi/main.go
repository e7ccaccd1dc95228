// Command gpucdi gives containers NVIDIA GPUs through CDI alone.
//
// It is what people type. What talks to others than the driver it leaves to
// gpucdi-agent: docs/decisions/0014 says why.
package main

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cmd/internal/cli"
)

func main() {
	// It ends in a moment, and collects nothing as long as it needs little till then.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(64 << 20)
	root := &cobra.Command{
		Short: "Give containers NVIDIA GPUs through CDI alone",
		Long: `gpucdi finds a node's NVIDIA GPUs, writes a CDI spec for them, and offers them
to the kubelet. Stock containerd or CRI-O does the rest: no NVIDIA runtime, no
hook, no container toolkit on the host.

Each flag can also be set by a variable: --host-root by GPUCDI_HOST_ROOT.`,
	}
	root.AddCommand(newGenerateCommand(), newListCommand(), newConfigCommand(), newVersionCommand(),
		ofAgent("serve", "Offer the node's GPUs to its kubelet"),
		ofAgent("status", "Show what this node's agent knows"),
		ofAgent("doctor", "Look for what keeps pods of this node from GPUs"),
		ofAgent("unlabel", "Remove the labels that agents have given to nodes"))
	cli.Main(context.Background(), root)
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of gpucdi",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "gpucdi", cli.Version)
			return err
		},
	}
}
