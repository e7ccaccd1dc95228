package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/vcuda"
)

// leaseName is the name of the lease of the running template controller.
const leaseName = "gpucdi-templates"

func newTemplatesCommand() *cobra.Command {
	var driver, class, namespace string
	cmd := &cobra.Command{
		Use:   "templates",
		Short: "Create ResourceClaimTemplates for pods that request vcuda-core and vcuda-memory",
		Long: `Create the ResourceClaimTemplates that pods refer to after an admission policy of
the chart has replaced vcuda-core and vcuda-memory, and delete templates that no
pod has referred to for an hour. The command runs until SIGTERM. If several
processes run, only the holder of the lease acts. The command requires a service
account that may list and watch pods, and write templates and leases.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return createTemplates(cmd.Context(), namespace, vcuda.Config{Driver: driver, Class: class}, log)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&driver, "dra-driver-name", "gpu.nvidia.com", "name of the DRA driver")
	flags.StringVar(&class, "device-class", "gpu.nvidia.com", "DeviceClass of the templates")
	flags.StringVar(&namespace, "lease-namespace", "gpucdi", "namespace of the lease")
	return cmd
}

func createTemplates(ctx context.Context, namespace string, config vcuda.Config, log *slog.Logger) error {
	client, err := cluster.InCluster()
	if err != nil {
		return fmt.Errorf("creating templates: %w", err)
	}
	holder, err := os.Hostname() // the name of the pod
	if err != nil {
		return fmt.Errorf("creating templates: %w", err)
	}
	config.API, config.Lease = client, cluster.NewLease(client, namespace, leaseName, holder)
	log.Info("template controller started", "version", version, "driver", config.Driver, "class", config.Class)
	vcuda.New(config, log).Run(ctx)
	return nil
}
