package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/status"
)

// defaultAddress is that of an agent with the default --listen.
const defaultAddress = "127.0.0.1:9435"

const watchInterval = 2 * time.Second

// clearScreen is the escape sequence that moves the cursor home and clears the terminal.
const clearScreen = "\x1b[H\x1b[J"

func newStatusCommand() *cobra.Command {
	var (
		address string
		output  outputFormat
		watch   bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show agent status",
		Long: `Show agent status: the components from the driver to the kubelet, and each device
with its health and the pod it is allocated to. In a cluster:

  kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi status`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			show := func() error {
				node, err := status.Fetch(cmd.Context(), address)
				if err != nil {
					return err
				}
				return writeStatus(cmd.OutOrStdout(), node, output)
			}
			if !watch {
				return show()
			}
			return repeat(cmd.Context(), func() error {
				if isTerminal(cmd.OutOrStdout()) {
					fmt.Fprint(cmd.OutOrStdout(), clearScreen)
				}
				return show()
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&address, "address", defaultAddress, "address of the agent, host:port")
	output.register(cmd, formatTable, formatWide, formatJSON, formatYAML)
	flags.BoolVarP(&watch, "watch", "w", false, "refresh every 2 seconds until interrupted")
	return cmd
}

// repeat calls show every watchInterval until ctx ends or show fails.
func repeat(ctx context.Context, show func() error) error {
	for {
		err := show()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

func writeStatus(w io.Writer, node status.Node, output outputFormat) error {
	if output.name == formatYAML {
		fmt.Fprintln(w, "---") // --watch writes several documents
	}
	if output.structured() {
		return output.encode(w, node)
	}
	return writeStatusTables(w, node, output.name == formatWide, painterOf(w))
}
