package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/agent"
	"github.com/gpucdi/gpucdi/cluster"
)

// Limits of --spread. maxSpread also bounds the time between verifications of the ResourceSlices.
const (
	minSpread = time.Second
	maxSpread = time.Hour
)

func newServeCommand() *cobra.Command {
	var (
		host   hostFlags
		config agent.Config
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the device plugin",
		Long: `Run the device plugin, and the DRA driver if --dra-driver-name is set, until
SIGTERM. The CDI specs stay in place, since running pods require them. A changed
config takes effect immediately; SIGHUP rereads the config and the driver.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkListen(cmd.Context(), config.Listen); err != nil {
				return usage(fmt.Errorf("--listen %q is not host:port: %w", config.Listen, err))
			}
			config.Node, config.DriverRoot, config.Library, config.Version = host.root(), host.driverRoot, host.library, version
			if config.Spread < minSpread || config.Spread > maxSpread {
				return usage(fmt.Errorf("--spread %s is not from %s to %s", config.Spread, minSpread, maxSpread))
			}
			var err error
			if config.Worker, err = workerPath(); err != nil {
				return err
			}
			return serve(cmd.Context(), config, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	flags := cmd.Flags()
	host.register(flags)
	flags.StringVar(&config.ConfigFile, "config", "", "NodeConfig file (default: none, all keys have defaults)")
	flags.StringVar(&config.NodeName, "node-name", "", "name of this node's Node object; empty disables requests to the API server")
	flags.DurationVar(&config.Spread, "spread", cluster.DefaultSpread, "interval over which the agents of a cluster distribute non-urgent requests to the API server, from 1s to 1h; reduce it in small clusters to update labels within seconds of a driver upgrade")
	flags.StringVar(&config.DRADriver, "dra-driver-name", "", "name of the DRA driver that allocates GPUs to ResourceClaims, such as gpu.nvidia.com; empty disables it")
	flags.StringVar(&config.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "kubelet directory that contains device-plugins, the same on all distributions; the kubelet root directories of k0s and MicroK8s, which are elsewhere, are detected")
	flags.StringVar(&config.CDIDir, "cdi-dir", "/var/run/cdi", "directory for CDI specs, which the container runtime must read")
	flags.StringVar(&config.StateDir, "state-dir", "/run/gpucdi", "directory for state that survives an agent restart; a reboot must clear it; empty disables it")
	flags.BoolVar(&config.LoadModules, "load-modules", false, "load missing kernel modules of the driver with the node's modprobe, in a chroot to --host-root")
	flags.StringVar(&config.NFDDir, "nfd-dir", "/etc/kubernetes/node-feature-discovery/features.d", "directory for labels of Node Feature Discovery, used if labels.place is nfd; empty disables it")
	flags.StringVar(&config.Listen, "listen", ":9435", "address for metrics, status and health, unauthenticated; empty disables it")
	return cmd
}

// serve runs the agent until ctx ends.
func serve(ctx context.Context, config agent.Config, log *slog.Logger) error {
	// A process that may load kernel modules has full control of the node, so dropping capabilities would not help.
	if !config.LoadModules {
		if err := dropCapabilities(); err != nil {
			log.Warn("capabilities not dropped", "err", err)
		}
	}
	if config.NodeName != "" {
		log = log.With("node", config.NodeName)
	}
	log.Info("agent started", "version", version)
	defer log.Info("agent stopped, CDI specs kept for running pods")
	return agent.New(config, log).Run(ctx, hangups(ctx))
}

func checkListen(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if port == "" {
		return errors.New("missing port")
	}
	_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	return err
}

// hangups delivers each SIGHUP until ctx ends. Signals that arrive before the previous one is received are merged.
func hangups(ctx context.Context) <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	reload := make(chan struct{})
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			select {
			case <-ctx.Done():
				return
			case reload <- struct{}{}:
			}
		}
	}()
	return reload
}
