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
		host      hostFlags
		node      doctor.Node
		launch    bool
		container doctor.Launch
		output    outputFormat
		bundle    string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose why pods on this node cannot use GPUs",
		Long: `Diagnose why pods on this node cannot use GPUs: check each component from the
kernel module to the agent, and report problems with their remedies. The command
is read-only and works without the agent. In a cluster:

  kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi doctor

With --launch, also start a container with a GPU in the pod of the agent, inspect
it from inside and remove it. Pods that hold the GPU keep it.

With --bundle, write an archive for a bug report instead of the findings; see
docs/troubleshooting.md.

The exit code is 1 if a check fails, unless --bundle is set. On a host without
Kubernetes, the checks that concern Kubernetes are skipped.`,
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !launch && (container.Image != "" || container.Device != "") {
				return usage(errors.New("--image and --device require --launch"))
			}
			var err error
			if node.Program, err = os.Executable(); err != nil {
				return fmt.Errorf("finding the path of gpucdi: %w", err)
			}
			node.Worker, _ = workerPath() // the NVML check reports an error
			node.Root, node.DriverRoot, node.Library = host.root(), host.driverRoot, host.library
			if launch {
				node.Launch = &container
			}
			node.Labels = func(ctx context.Context) (map[string]string, error) { return labelsOf(ctx, node.Name) }
			node.Version = version
			if bundle != "" {
				return writeBundle(cmd.Context(), node, cmd.OutOrStdout(), bundle)
			}
			return examine(cmd.Context(), node, cmd.OutOrStdout(), output)
		},
	}
	flags := cmd.Flags()
	host.register(flags)
	output.register(cmd, formatTable, formatJSON, formatYAML)
	flags.StringVar(&node.ConfigFile, "config", "", "NodeConfig file of the agent (default: none, all keys have defaults)")
	flags.StringVar(&node.Name, "node-name", "", "name of this node in Kubernetes")
	flags.StringVar(&node.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "kubelet directory that contains device-plugins, the same on all distributions; the kubelet root directories of k0s and MicroK8s, which are elsewhere, are detected")
	flags.StringVar(&node.CDIDir, "cdi-dir", "/var/run/cdi", "directory of the agent's CDI specs")
	flags.StringVar(&node.Address, "address", defaultAddress, "address of the agent, host:port")
	flags.StringVar(&bundle, "bundle", "", "tar.gz file to write for a bug report, - for stdout")
	flags.BoolVar(&launch, "launch", false, "start a container with a GPU and inspect it from inside")
	flags.StringVar(&container.Image, "image", "", "image for --launch, which must be on the node and have glibc and, if the doctor runs in a pod, gpucdi and gpucdi-nvml at the same paths as in the pod (default: the image of the agent)")
	flags.StringVar(&container.Device, "device", "", "UUID of the GPU or MIG device for --launch (default: the first healthy one)")
	return cmd
}

// labelsOf returns the labels of a node. It requires a pod with the agent's service account.
func labelsOf(ctx context.Context, node string) (map[string]string, error) {
	if node == "" {
		return nil, errors.New("reading node labels: unknown node name; set --node-name")
	}
	client, err := cluster.InCluster()
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %s: %w", node, err)
	}
	return client.Labels(ctx, node)
}

// examine writes the findings: as a table, each when its check ends; in other formats, all at the end. It returns an
// error if a check failed.
func examine(ctx context.Context, node doctor.Node, out io.Writer, output outputFormat) error {
	paint := painterOf(out)
	findings := []doctor.Finding{}
	doctor.Examine(ctx, node, func(f doctor.Finding) {
		findings = append(findings, f)
		if !output.structured() {
			writeFinding(out, paint, f)
		}
	})
	if output.structured() {
		if err := output.encode(out, map[string]any{"findings": findings}); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("checking the node: %w", ctx.Err())
	}
	return verdict(findings)
}

// verdict returns an error if a check failed.
func verdict(findings []doctor.Finding) error {
	failed := map[string]bool{}
	for _, f := range findings {
		if f.Verdict == doctor.Fail {
			failed[f.Check] = true
		}
	}
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return errors.New("1 check failed")
	}
	return fmt.Errorf("%d checks failed; fix the first one first", len(failed))
}

// writeFinding writes the verdict, the check and the message, and below them the remedy.
func writeFinding(out io.Writer, paint painter, f doctor.Finding) {
	const indent = 4 + 2 + 13 + 2 // the columns of the verdict and the check, with their spacing
	fmt.Fprintf(out, "%s  %-13s  %s\n", paint(string(f.Verdict), verdictColors[f.Verdict]), f.Check, indented(f.Message, indent))
	if f.Remedy != "" {
		fmt.Fprintf(out, "%*s%s\n", indent, "", indented(f.Remedy, indent))
	}
}

var verdictColors = map[doctor.Verdict]color{
	doctor.Pass: green,
	doctor.Warn: yellow,
	doctor.Fail: red,
	doctor.Skip: neutral,
}
