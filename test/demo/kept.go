package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// programDir is the directory of the programs and the kubeconfig for a kept node, below its state directory. The
// symlink bin/demo in the checkout points to it, and is created before the node starts.
const programDir = "demo"

// changes are commands that change the simulated driver, with their effects.
var changes = [][2]string{
	{"xid 3 79", "XID 79 on GPU 3"},
	{"lose 0", "GPU 0 falls off the bus"},
	{"return 0", "GPU 0 returns"},
	{"mig 1 3g.40gb,3g.40gb", "two MIG devices on GPU 1"},
	{"driver upgrade", "another driver version, while pods run"},
	{"reset", "initial GPUs and driver version"},
	{"--help", "all commands"},
}

// link creates the link to the programs of a node that is about to start. It fails if the link points to a running
// node, which would be difficult to find without the link.
func (d *demo) link(dir string) error {
	if target, err := os.Readlink(d.path); err == nil {
		if b, err := box.Open(filepath.Dir(target)); err == nil {
			return fmt.Errorf("the node of %s is still running; remove it first: kill %d", d.path, b.Keeper())
		}
		if err := os.Remove(d.path); err != nil {
			return fmt.Errorf("replacing the link to an earlier node: %w", err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the link to an earlier node: %w; move or remove %s", err, d.path)
	}
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil { //nolint:gosec // a directory of the checkout
		return fmt.Errorf("linking the node to the checkout: %w", err)
	}
	if err := os.Symlink(filepath.Join(dir, programDir), d.path); err != nil {
		return fmt.Errorf("linking the node to the checkout: %w", err)
	}
	return nil
}

// install installs the programs for a kept node. Its kubectl and helm ignore KUBECONFIG and always use this node.
func (d *demo) install(ctx context.Context) error {
	done := d.out.Stage("kubectl, helm")
	dir := filepath.Join(d.node.Box.Dir(), programDir)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // the kubeconfig has its own mode
		return fmt.Errorf("installing the programs of the node: %w", err)
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := os.Symlink(d.node.Kubeconfig(), file); err != nil {
		return fmt.Errorf("linking the kubeconfig: %w", err)
	}
	for name, tool := range map[string]tools.Tool{"kubectl": tools.Kube, "helm": tools.Helm} {
		from, err := tools.Build(ctx, tool)
		if err != nil {
			return err
		}
		script := fmt.Sprintf("#!/bin/sh\nKUBECONFIG=%s exec %s \"$@\"\n", quote(file), quote(filepath.Join(from, name)))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil { //nolint:gosec // a program
			return fmt.Errorf("installing %s: %w", name, err)
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "github.com/gpucdi/gpucdi/test/gpucdi-sim")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building gpucdi-sim: %w\n%s", err, out)
	}
	d.installed = true
	done()
	return nil
}

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// printCommands prints the commands for a node that keeps running. The indented commands can be run in this order.
func (d *demo) printCommands() {
	if !d.installed {
		d.out.Printf("\nThe node keeps running. To remove it:\n\n    kill %d\n", d.node.Box.Keeper())
		return
	}
	d.out.Printf("The node keeps running. Its programs are in %s; any kubectl and helm can use the kubeconfig there:\n", d.path)
	d.out.Printf("    export PATH=%s:\"$PATH\" KUBECONFIG=%s", quote(d.path), quote(filepath.Join(d.path, "kubeconfig")))
	d.out.Printf("    kubectl get pods --all-namespaces\n    helm list --all-namespaces\n")
	if d.driver.simulated {
		d.out.Printf("To change the simulated driver, as docs/tour.md describes:\n")
		for _, c := range changes {
			d.out.Printf("    gpucdi-sim %-24s # %s", c[0], c[1])
		}
		d.out.Printf("")
	}
	d.out.Printf("To remove the node:\n\n    gpucdi-sim stop\n")
}
