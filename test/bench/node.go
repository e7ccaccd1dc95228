package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// node is a host root with a simulated driver and a container runtime.
type node struct {
	root   string
	driver *simdriver.Driver
	count  int // number of devices that a plugin advertises
	stop   func()
}

func (b *bench) install(ctx context.Context) error {
	for _, p := range []struct {
		at      **node
		profile simdriver.Profile
	}{{&b.nodes.eight, simdriver.H100x8()}, {&b.nodes.sixteen, simdriver.GPUs16()}, {&b.nodes.partitioned, simdriver.GPUs16()}} {
		root, err := os.MkdirTemp(b.dir, p.profile.Name+"-")
		if err != nil {
			return fmt.Errorf("creating a node: %w", err)
		}
		driver, err := simdriver.Install(root, p.profile)
		if err != nil {
			return err
		}
		// NVIDIA's programs first search the host's ld.so.cache.
		if out, err := exec.CommandContext(ctx, "ldconfig", "-r", root).CombinedOutput(); err != nil {
			return fmt.Errorf("running ldconfig: %w\n%s", err, out)
		}
		stop, err := serveRuntime(ctx, root)
		if err != nil {
			return err
		}
		*p.at = &node{root: root, driver: driver, count: len(p.profile.GPUs), stop: stop}
	}
	return b.nodes.partitioned.partition()
}

// close stops the container runtimes that install started.
func (b *bench) close() {
	for _, n := range []*node{b.nodes.eight, b.nodes.sixteen, b.nodes.partitioned} {
		if n != nil {
			n.stop()
		}
	}
}

// command returns a command with the environment that makes it find the node's driver.
func (n *node) command(ctx context.Context, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	return cmd
}
