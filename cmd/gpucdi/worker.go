package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/gpu/nvml"
	"github.com/gpucdi/gpucdi/internal/host"
)

// workerName is the command that serve runs itself again with.
const workerName = "hold-driver"

// newWorkerCommand is for the agent alone: the process that talks to the
// driver on its behalf.
func newWorkerCommand() *cobra.Command {
	var (
		hostRoot string
		work     nvml.Work
	)
	cmd := &cobra.Command{
		Use:    workerName,
		Short:  "Talk to the driver on behalf of serve",
		Hidden: true,
		Args:   usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			go endWith(cmd.InOrStdin())
			work.Node = host.NewRoot(hostRoot)
			return nvml.Serve(work, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&hostRoot, "host-root", "/", "where this process sees the node's root")
	flags.StringVar(&work.Library, "library", "", "NVML")
	flags.DurationVar(&work.Interval, "interval", 5*time.Second, "the time between two probes")
	flags.IntSliceVar(&work.Doubted, "doubted", nil, "GPUs to ask last, by index")
	return cmd
}

// endWith ends this process when the agent does, and with it its end of the
// pipe: a call into the driver may never come back to see that.
func endWith(parent io.Reader) {
	_, err := io.Copy(io.Discard, parent)
	fmt.Fprintln(os.Stderr, "the agent is gone", err)
	os.Exit(exitFailed)
}
