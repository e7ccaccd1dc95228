package main

import (
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/mps"
)

func newMPSCommand() *cobra.Command {
	var (
		host     hostFlags
		stateDir string
	)
	cmd := &cobra.Command{
		Use:   "mps",
		Short: "Run the driver's MPS control daemon",
		Long: `Run nvidia-cuda-mps-control of the driver with MPS protocol 3 until SIGTERM, and
restart it when it ends. Its end also ends all programs that use a GPU through MPS,
so it runs separately from the agent, which sends it commands. The command requires
the root user, the PID namespace of the node, and driver 615 or later.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			program := mps.Program{Node: host.root(), DriverRoot: host.driverRoot, Library: host.library}
			return (&mps.Daemon{Program: program, Dir: filepath.Join(stateDir, mps.Dir), Log: log}).Run(cmd.Context())
		},
	}
	host.register(cmd.Flags())
	cmd.Flags().StringVar(&stateDir, "state-dir", "/run/gpucdi", "state directory of the agent, in which the MPS daemon has a directory")
	return cmd
}
