package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/agent"
)

func newServeCommand() *cobra.Command {
	var (
		where                                    hostFlags
		configFile, nodeName, kubeletDir, cdiDir string
		stateDir, nfdDir, listen                 string
		loadModules                              bool
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the device plugin",
		Long: `Run the device plugin until SIGTERM. The CDI specs stay in place, since running
pods require them. A changed config takes effect at once; SIGHUP rereads it and
the driver.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkListen(cmd.Context(), listen); err != nil {
				return usage(fmt.Errorf("--listen %q is not host:port: %w", listen, err))
			}
			worker, err := workerPath()
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			// A process that may load modules may do anything, so dropping would protect nothing.
			if !loadModules {
				if err := dropCapabilities(); err != nil {
					log.Warn("capabilities not dropped", "err", err)
				}
			}
			if nodeName != "" {
				log = log.With("node", nodeName)
			}
			log.Info("gpucdi starts", "version", version)
			defer log.Info("gpucdi ends; its CDI specs stay for the pods that run")
			return agent.New(agent.Config{
				Node:       where.Node(),
				DriverRoot: where.DriverRoot,
				Library:    where.Library,
				KubeletDir: kubeletDir,
				CDIDir:     cdiDir,
				StateDir:   stateDir,
				NFDDir:     nfdDir,

				LoadModules: loadModules,
				Version:     version,
				NodeName:    nodeName,
				Listen:      listen,
				Worker:      worker,
				ConfigFile:  configFile,
			}, log).Run(cmd.Context(), hangups(cmd.Context()))
		},
	}
	flags := cmd.Flags()
	where.Register(flags)
	flags.StringVar(&configFile, "config", "", "the NodeConfig file (default: none, all keys have defaults)")
	flags.StringVar(&nodeName, "node-name", "", "the Kubernetes name of this node")
	flags.StringVar(&kubeletDir, "kubelet-dir", "/var/lib/kubelet", "where the kubelet has its device-plugins; the same with every distribution")
	flags.StringVar(&cdiDir, "cdi-dir", "/var/run/cdi", "where CDI specs are written; the runtime must read it")
	flags.StringVar(&stateDir, "state-dir", "/run/gpucdi", "directory for what has to outlive an agent restart, lost at reboot; empty disables it")
	flags.BoolVar(&loadModules, "load-modules", false, "load missing kernel modules of the driver with the node's modprobe, run within --host-root")
	flags.StringVar(&nfdDir, "nfd-dir", "/etc/kubernetes/node-feature-discovery/features.d", "where Node Feature Discovery reads labels, if the config says that it shall")
	flags.StringVar(&listen, "listen", ":9435", "where status, metrics and health are served, without a password; empty: nowhere")
	return cmd
}

func checkListen(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	return err
}

// hangups delivers each SIGHUP until ctx ends; several at once are one.
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
