package main

import (
	"time"

	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/doctor"
)

// newProbeCommand returns what the container of doctor --launch runs.
func newProbeCommand() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:    doctor.ProbeCommand + " [NODE|LIBRARY]...",
		Short:  "Report what a container has of the driver",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if idle > 0 {
				// The kubelet asks the container to end, since it did not start it.
				signal.Ignore(syscall.SIGTERM)
				time.Sleep(idle)
				return nil
			}
			worker, err := workerPath()
			if err != nil {
				return err
			}
			return doctor.Probe(cmd.Context(), worker, args, cmd.OutOrStdout())
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", 0, "time to do nothing for, in place of the report")
	return cmd
}
