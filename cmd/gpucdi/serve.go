package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/agent"
)

func newServeCommand() *cobra.Command {
	var (
		where                                    look
		configFile, nodeName, kubeletDir, cdiDir string
		nfdDir, listen                           string
		loadModules                              bool
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Offer the node's GPUs to its kubelet",
		Long: `Offer the node's GPUs to its kubelet until SIGTERM. The CDI specs stay in place
at the end, since running pods need them. A config that changes is taken up at
once; SIGHUP reads it and the driver again.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkListen(cmd.Context(), listen); err != nil {
				return usageError{fmt.Errorf("--listen %q is not host:port: %w", listen, err)}
			}
			worker, err := findWorker()
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			// Who may load a module may do anything: then there is nothing to give up.
			if !loadModules {
				if err := dropRights(); err != nil {
					log.Warn("gpucdi keeps the capabilities that it was started with", "err", err)
				}
			}
			if nodeName != "" {
				log = log.With("node", nodeName)
			}
			log.Info("gpucdi starts", "version", version)
			defer log.Info("gpucdi ends; its CDI specs stay for the pods that run")
			return agent.New(agent.Config{
				Node:       where.node(),
				DriverRoot: where.driverRoot,
				Library:    where.library,
				KubeletDir: kubeletDir,
				CDIDir:     cdiDir,
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
	where.register(flags)
	flags.StringVar(&configFile, "config", "", "the NodeConfig file (default: none, all keys have defaults)")
	flags.StringVar(&nodeName, "node-name", "", "the Kubernetes name of this node")
	flags.StringVar(&kubeletDir, "kubelet-dir", "/var/lib/kubelet", "where the kubelet has its device-plugins; the same with every distribution")
	flags.StringVar(&cdiDir, "cdi-dir", "/var/run/cdi", "where CDI specs are written; the runtime must read it")
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

// findWorker returns the program that talks to the driver, which is installed
// beside this one.
func findWorker() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program, since gpucdi-nvml stands beside it: %w", err)
	}
	worker, err := exec.LookPath(filepath.Join(filepath.Dir(self), "gpucdi-nvml"))
	if err != nil {
		return "", fmt.Errorf("finding the program that talks to the driver: %w (install it beside gpucdi)", err)
	}
	return worker, nil
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
