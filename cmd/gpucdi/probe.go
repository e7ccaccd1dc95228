package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/doctor"
)

// newProbeCommand returns the command that runs in the container of doctor --launch.
func newProbeCommand() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:    doctor.ProbeCommand + " [DEVICE_NODE|LIBRARY]...",
		Short:  "Report the driver files and devices of this container",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if idle > 0 {
				select {
				case <-cmd.Context().Done():
				case <-time.After(idle):
				}
				return nil
			}
			worker, err := workerPath()
			if err != nil {
				return err
			}
			return doctor.Probe(cmd.Context(), worker, args, cmd.OutOrStdout())
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", 0, "time to sleep instead of reporting, such as 5m")
	return cmd
}
