// Command gpucdi gives containers NVIDIA GPUs using only CDI. It contains all commands, including the agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version = "dev"

// The exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	err := newRootCommand().ExecuteContext(context.Background())
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "gpucdi: %s\n", indented(err.Error(), 2))
	if errors.As(err, new(usageError)) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of gpucdi",
		Args:  checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "gpucdi", version)
			return err
		},
	}
}
