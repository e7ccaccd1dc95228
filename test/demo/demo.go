package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// A demo is one run.
type demo struct {
	out    *progress
	keep   bool
	driver driver
	node   *node.Node
}

// start brings up a node with GPUs.
func (d *demo) start(ctx context.Context) error {
	done := d.out.stage("Debian packages")
	if err := tools.InstallPackages(ctx); err != nil {
		return err
	}
	done()
	// On disk and not in /tmp, which may be memory: container images go there.
	dir, err := os.MkdirTemp("/var/tmp", "gpucdi-demo-")
	if err != nil {
		return fmt.Errorf("making a state directory: %w", err)
	}
	d.node, err = node.Start(ctx, node.Config{
		Box:     box.Config{Dir: dir, Simulated: d.driver.simulated, Keep: d.keep},
		Prepare: d.driver.prepare,
		Images:  []func(context.Context) (string, error){images.Agent},
		Stage:   d.out.stage,
	})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

// deploy runs the agent and waits until the node offers its GPUs.
func (d *demo) deploy(ctx context.Context) error {
	done := d.out.stage("gpucdi")
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(filepath.Dir(module), "deploy/gpucdi.yaml"))
	if err != nil {
		return fmt.Errorf("reading the agent's manifest: %w", err)
	}
	if err := d.node.Apply(ctx, manifest); err != nil {
		return err
	}
	if err := d.awaitGPUs(ctx); err != nil {
		return err
	}
	done()
	return nil
}

// awaitGPUs waits until the node says that it has all GPUs to give.
func (d *demo) awaitGPUs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		out, err := d.node.Kubectl(ctx, "get", "node", node.Name, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)
		if err == nil && string(out) == fmt.Sprint(d.driver.gpus) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the node to offer %d GPUs: it offers %q; the agent says:\n%s",
				d.driver.gpus, out, d.agentLog())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (d *demo) agentLog() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := d.node.Kubectl(ctx, "--namespace", "gpucdi", "logs", "daemonset/gpucdi", "--tail", "20")
	if err != nil {
		return err.Error()
	}
	return string(out)
}

const pod = `apiVersion: v1
kind: Pod
metadata: {name: demo}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: demo
    image: debian:bookworm-slim
    imagePullPolicy: Never
    command: [sleep, infinity]
    resources: {limits: {nvidia.com/gpu: %d}}
`

// sights are the commands that are run in the pod, to see what it sees.
func sights() []string {
	return []string{
		"nvidia-smi -L",
		"ls -l /dev/nvidia*",
		"cd /usr/lib/*-linux-gnu && ls -C -T0 libcuda* libnvidia*",
	}
}

// show schedules a pod that asks for GPUs and prints what it sees.
func (d *demo) show(ctx context.Context) error {
	done := d.out.stage(fmt.Sprintf("pod with %d GPUs", d.driver.request()))
	if err := d.node.Apply(ctx, fmt.Appendf(nil, pod, d.driver.request())); err != nil {
		return err
	}
	if _, err := d.node.Kubectl(ctx, "wait", "pod/demo", "--for=condition=Ready", "--timeout=60s"); err != nil {
		events, _ := d.node.Kubectl(ctx, "describe", "pod", "demo")
		return fmt.Errorf("%w\n%s", err, events)
	}
	done()
	d.out.total()
	d.out.say("\nWhat the pod sees:")
	for _, command := range sights() {
		seen, err := d.node.Kubectl(ctx, "exec", "demo", "--", "sh", "-c", command)
		if err != nil {
			return err
		}
		d.out.say("\n  $ %s\n%s", command, indent(seen))
	}
	d.out.say("")
	return nil
}

func indent(text []byte) string {
	return "  " + strings.ReplaceAll(string(bytes.TrimSpace(text)), "\n", "\n  ")
}

func (d *demo) end() error {
	done := d.out.stage("taking all down")
	if err := d.node.Close(); err != nil {
		return err
	}
	done()
	return nil
}

// farewell says how to go on with a node that stays.
func (d *demo) farewell() {
	d.out.say("The node stays. Go on with\n\n    %s get pods --all-namespaces\n", filepath.Join(d.node.Box.Dir(), "kubectl"))
	d.out.say("(files reach it through standard input: apply -f - < FILE) and end it with\n\n    kill %d\n", d.node.Box.Keeper())
}
