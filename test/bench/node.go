package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// node is a host root with a simulated driver and a container runtime.
type node struct {
	root   string
	driver *simdriver.Driver
	stop   func()
}

func (b *bench) install(ctx context.Context) error {
	for _, p := range []struct {
		at      **node
		profile simdriver.Profile
	}{{&b.nodes.eight, simdriver.H100x8()}, {&b.nodes.sixteen, simdriver.GPUs16()}} {
		root := filepath.Join(b.dir, p.profile.Name)
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
		*p.at = &node{root: root, driver: driver, stop: stop}
	}
	return nil
}

// close stops the container runtimes that install started.
func (b *bench) close() {
	for _, n := range []*node{b.nodes.eight, b.nodes.sixteen} {
		if n != nil {
			n.stop()
		}
	}
}

// command returns a command that finds the node's driver.
func (n *node) command(ctx context.Context, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	return cmd
}
