package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/nvidia"
	"github.com/gpucdi/gpucdi/test/product"
)

const (
	// standard are the default features of gpucdi, everything all features.
	standard   = "compute,utility,video"
	everything = "compute,utility,graphics,video,display"
)

// nodeConfig begins a config of gpucdi.
const nodeConfig = "apiVersion: gpucdi.dev/v1\nkind: NodeConfig\n"

// noHealthChecks disables the health checks of NVIDIA's plugin where it shares GPUs. With them, it would register for
// the events of each replica, which exceeds the limit of the simulated driver.
const noHealthChecks = "DP_DISABLE_HEALTHCHECKS=all"

// programs has the paths of the measured programs and of their configs.
type programs struct {
	gpucdi        string
	config        string // config of gpucdi with all features
	shared        string // config of gpucdi with MIG devices and replicas
	sharedNVIDIA  string // config of NVIDIA's plugin with replicas
	nvidiaPlugin  string // the directory of NVIDIA's device plugin
	nvidiaDriver  string // the directory of NVIDIA's DRA driver
	nvidiaRuntime string // the directory of NVIDIA's container runtime
	nvidiaCTK     string
}

func (b *bench) build(ctx context.Context) (err error) {
	if b.gpucdi, err = product.Build(ctx, b.dir); err != nil {
		return err
	}
	b.config, b.shared = filepath.Join(b.dir, "features.yaml"), filepath.Join(b.dir, "shared.yaml")
	b.sharedNVIDIA = filepath.Join(b.dir, "shared-nvidia.yaml")
	for file, config := range map[string]string{
		b.config:       nodeConfig + "cdi: {features: [" + everything + "]}\n",
		b.shared:       nodeConfig + fmt.Sprintf("mig: {strategy: single}\nresources: [{name: nvidia.com/gpu, replicas: %d}]\n", replicas),
		b.sharedNVIDIA: nvidia.TimeSlicing(gpuResource, replicas),
	} {
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return err
		}
	}
	if b.nvidiaPlugin, err = tools.Build(ctx, tools.NVIDIAPlugin); err != nil {
		return err
	}
	if b.nvidiaDriver, err = tools.Build(ctx, tools.NVIDIADRADriver); err != nil {
		return err
	}
	if b.nvidiaRuntime, err = tools.Build(ctx, tools.NVIDIARuntime); err != nil {
		return err
	}
	toolkit, err := tools.Build(ctx, tools.NVIDIAToolkit)
	b.nvidiaCTK = filepath.Join(toolkit, "nvidia-ctk")
	return err
}

// A server returns the command of a device plugin on a node. The plugin may serve status and metrics at address.
type server func(ctx context.Context, n *node, address string) *exec.Cmd

// agent is the server of gpucdi, with the features and the GOMAXPROCS of the Helm chart.
func (p *programs) agent(ctx context.Context, n *node, address string) *exec.Cmd {
	cmd := n.command(ctx, p.gpucdi, "serve", "--host-root", n.root, "--listen", address)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	return cmd
}

func (p *programs) agentAll(ctx context.Context, n *node, address string) *exec.Cmd {
	cmd := p.agent(ctx, n, address)
	cmd.Args = append(cmd.Args, "--config", p.config)
	return cmd
}

// agentShared and nvidiaShared advertise replicas of MIG devices.
func (p *programs) agentShared(ctx context.Context, n *node, address string) *exec.Cmd {
	cmd := p.agent(ctx, n, address)
	cmd.Args = append(cmd.Args, "--config", p.shared)
	return cmd
}

func (p *programs) nvidiaShared(ctx context.Context, n *node, address string) *exec.Cmd {
	cmd := p.nvidia(ctx, n, address)
	cmd.Args = append(cmd.Args, "--mig-strategy=single", "--config-file="+p.sharedNVIDIA)
	cmd.Env = append(cmd.Env, noHealthChecks)
	return cmd
}

func (p *programs) nvidia(ctx context.Context, n *node, _ string) *exec.Cmd {
	return n.command(ctx, nvidia.Plugin(p.nvidiaPlugin, n.root)...)
}

// generate and nvidiaGenerate return a command line that prints a CDI spec.
func (p *programs) generate(n *node, features string) []string {
	return []string{p.gpucdi, "generate", "--host-root", n.root, "--features", features}
}

func (p *programs) nvidiaGenerate(n *node) []string {
	return []string{p.nvidiaCTK, "cdi", "generate", "--driver-root=" + n.root, "--feature-flag=" + nvidia.NoSandboxUtils}
}
