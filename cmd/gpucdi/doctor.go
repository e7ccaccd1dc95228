package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/doctor"
)

func newDoctorCommand() *cobra.Command {
	var (
		where     hostFlags
		node      doctor.Node
		launch    bool
		container doctor.Launch
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose why pods on this node cannot use GPUs",
		Long: `Check every link from the kernel module to the agent, and report what is wrong
with it and how to fix it. It changes nothing, and works without the agent. In a
cluster:

  kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi doctor

With --launch it also starts a container with a GPU on the node's own runtime,
inspects from inside what the container got, and removes it. Pods that have that
GPU keep it.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !launch && (container.Image != "" || container.Device != "") {
				return usage(errors.New("--image and --device are for --launch"))
			}
			var err error
			if node.Program, err = os.Executable(); err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			node.Worker, _ = workerPath() // a missing one is reported with the driver
			node.Root, node.DriverRoot, node.Library = where.Node(), where.DriverRoot, where.Library
			if launch {
				node.Launch = &container
			}
			node.Labels = func(ctx context.Context) (map[string]string, error) { return labelsOf(ctx, node.Name) }
			return examine(cmd.Context(), node, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	where.Register(flags)
	flags.StringVar(&node.ConfigFile, "config", "", "NodeConfig file of the agent (default: none, all keys have defaults)")
	flags.StringVar(&node.Name, "node-name", "", "name of this node in Kubernetes")
	flags.StringVar(&node.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "where the kubelet has its device-plugins; the same with every distribution")
	flags.StringVar(&node.CDIDir, "cdi-dir", "/var/run/cdi", "where serve writes CDI specs")
	flags.StringVar(&node.Address, "address", defaultAddress, "where the agent listens")
	flags.BoolVar(&launch, "launch", false, "start a container with a GPU for a moment, and look from inside")
	flags.StringVar(&container.Image, "image", "", "the image that --launch starts: one that is on the node and has glibc (default: the agent's)")
	flags.StringVar(&container.Device, "device", "", "the UUID of the GPU or MIG device that --launch gives it (default: the first that is healthy)")
	return cmd
}

// labelsOf reads the labels of a node, which takes a pod with the agent's service account.
func labelsOf(ctx context.Context, node string) (map[string]string, error) {
	if node == "" {
		return nil, errors.New("reading the labels of this node: its name is unknown; set --node-name")
	}
	client, err := cluster.InCluster()
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %s: %w", node, err)
	}
	return client.Labels(ctx, node)
}

// examine shows what is found as it is found.
func examine(ctx context.Context, node doctor.Node, out io.Writer) error {
	paint := painterOf(out)
	failed := 0
	doctor.Examine(ctx, node, func(f doctor.Finding) {
		if f.Verdict == doctor.Fail {
			failed++
		}
		report(out, paint, f)
	})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("looking at the node: %w", ctx.Err())
	case failed > 0:
		return fmt.Errorf("%d things keep pods from GPUs: mend the first, and look again", failed)
	}
	return nil
}

// report writes a finding: its text and, below it, the fix.
func report(out io.Writer, paint painter, f doctor.Finding) {
	const indent = 4 + 2 + 13 + 2 // the verdict and the link, with what is between them
	fmt.Fprintf(out, "%s  %-13s  %s\n", paint(string(f.Verdict), colours[f.Verdict]), f.Link, indented(f.Says, indent))
	if f.Fix != "" {
		fmt.Fprintf(out, "%*s%s\n", indent, "", indented(f.Fix, indent))
	}
}

var colours = map[doctor.Verdict]colour{
	doctor.Pass: good,
	doctor.Warn: doubtful,
	doctor.Fail: bad,
	doctor.Skip: neutral,
}
