package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/doctor"
	"github.com/gpucdi/gpucdi/internal/config"
)

func newDoctorCommand() *cobra.Command {
	var (
		where                look
		node                 doctor.Node
		configFile, nodeName string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps pods of this node from GPUs",
		Long: `Look at every link from the kernel module to the agent, and say of each what is
wrong with it and how to mend it. It changes nothing, and works without the
agent. In a cluster:

  kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi doctor`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			worker, err := findWorker()
			if err != nil {
				return err
			}
			node.Root, node.DriverRoot, node.Library, node.Worker = where.node(), where.driverRoot, where.library, worker
			node.Load = func() (config.Config, error) {
				file, err := config.Load(configFile)
				if err != nil {
					return config.Config{}, err
				}
				return file.For(config.Node{Name: nodeName})
			}
			out := cmd.OutOrStdout()
			paint := painter(out)
			failed := 0
			doctor.Examine(cmd.Context(), node, func(f doctor.Finding) {
				if f.Verdict == doctor.Fail {
					failed++
				}
				fmt.Fprintf(out, "%s  %-13s  %s\n", paint(string(f.Verdict), colours[f.Verdict]), f.Link, f.Says)
				if f.Fix != "" {
					fmt.Fprintf(out, "%21s%s\n", "", f.Fix)
				}
			})
			switch {
			case cmd.Context().Err() != nil:
				return fmt.Errorf("looking at the node: %w", cmd.Context().Err())
			case failed > 0:
				return fmt.Errorf("%d things keep pods from GPUs: mend the first, and look again", failed)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	where.register(flags)
	flags.StringVar(&configFile, "config", "", "the NodeConfig file that serve is given")
	flags.StringVar(&nodeName, "node-name", "", "the Kubernetes name of this node")
	flags.StringVar(&node.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "where the kubelet has its device-plugins; the same with every distribution")
	flags.StringVar(&node.CDIDir, "cdi-dir", "/var/run/cdi", "where serve writes CDI specs")
	flags.StringVar(&node.Address, "address", defaultAddress, "where the agent listens")
	return cmd
}

var colours = map[doctor.Verdict]colour{
	doctor.Pass: good,
	doctor.Warn: doubtful,
	doctor.Fail: bad,
	doctor.Skip: neutral,
}
