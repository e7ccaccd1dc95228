package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/nvidia"
	"github.com/gpucdi/gpucdi/test/product"
)

// The features that containers get by default, and all.
const (
	standard   = "compute,utility"
	everything = "compute,utility,graphics,video,display"
)

// programs are the files of what is measured, with the directory that has NVIDIA's plugin, and a
// config for gpucdi that asks for everything.
type programs struct{ gpucdi, config, nvidiaPlugin, nvidiaCTK string }

func (b *bench) build(ctx context.Context) (err error) {
	if b.gpucdi, err = product.Build(ctx, b.dir); err != nil {
		return err
	}
	b.config = filepath.Join(b.dir, "config.yaml")
	config := "apiVersion: gpucdi.dev/v1\nkind: NodeConfig\ncdi: {features: [" + everything + "]}\n"
	if err := os.WriteFile(b.config, []byte(config), 0o600); err != nil {
		return err
	}
	if b.nvidiaPlugin, err = tools.Build(ctx, tools.NVIDIAPlugin); err != nil {
		return err
	}
	toolkit, err := tools.Build(ctx, tools.NVIDIAToolkit)
	b.nvidiaCTK = filepath.Join(toolkit, "nvidia-ctk")
	return err
}

// A server is a device plugin on a node. It may tell about itself at the address.
type server func(ctx context.Context, n *node, address string) *exec.Cmd

// agent is as deploy/ has it.
func (p *programs) agent(ctx context.Context, n *node, address string) *exec.Cmd {
	cmd := n.command(ctx, p.gpucdi, "serve", "--host-root", n.root, "--listen", address)
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	return cmd
}

func (p *programs) agentOfAll(ctx context.Context, n *node, address string) *exec.Cmd {
	cmd := p.agent(ctx, n, address)
	cmd.Args = append(cmd.Args, "--config", p.config)
	return cmd
}

func (p *programs) nvidia(ctx context.Context, n *node, _ string) *exec.Cmd {
	return n.command(ctx, nvidia.Plugin(p.nvidiaPlugin, n.root)...)
}

// generate and nvidiaGenerate print a CDI spec.
func (p *programs) generate(n *node, features string) []string {
	return []string{p.gpucdi, "generate", "--host-root", n.root, "--features", features}
}

func (p *programs) nvidiaGenerate(n *node) []string {
	return []string{p.nvidiaCTK, "cdi", "generate", "--driver-root=" + n.root, "--feature-flag=" + nvidia.NoSandboxUtils}
}
