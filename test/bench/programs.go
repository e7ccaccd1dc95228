package main

import (
	"context"
	"os"
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

// A server is the command line of a device plugin on a node. It may tell about itself at the address.
type server func(n *node, address string) []string

func (p *programs) agent(n *node, address string) []string {
	return []string{p.gpucdi, "serve", "--host-root", n.root, "--listen", address}
}

func (p *programs) agentOfAll(n *node, address string) []string {
	return append(p.agent(n, address), "--config", p.config)
}

func (p *programs) nvidia(n *node, _ string) []string { return nvidia.Plugin(p.nvidiaPlugin, n.root) }

// generate and nvidiaGenerate print a CDI spec.
func (p *programs) generate(n *node, features string) []string {
	return []string{p.gpucdi, "generate", "--host-root", n.root, "--features", features}
}

func (p *programs) nvidiaGenerate(n *node) []string {
	return []string{p.nvidiaCTK, "cdi", "generate", "--driver-root=" + n.root, "--feature-flag=" + nvidia.NoSandboxUtils}
}
