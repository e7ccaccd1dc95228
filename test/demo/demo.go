package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/progress"
)

// demo is the state of one run.
type demo struct {
	out    *progress.Progress
	keep   bool
	driver driver
	node   *node.Node // nil before it has started

	checkout  string // directory of the repository
	path      string // link to the programs of a kept node
	installed bool   // the programs are complete
}

// start starts a node with GPUs.
func (d *demo) start(ctx context.Context) error {
	done := d.out.Stage("Debian packages")
	if err := tools.InstallPackages(ctx); err != nil {
		return err
	}
	done()
	// The state directory contains container images, and /tmp may be a tmpfs.
	dir, err := os.MkdirTemp("/var/tmp", "gpucdi-demo-")
	if err != nil {
		return fmt.Errorf("creating a state directory: %w", err)
	}
	if d.keep {
		if err := d.link(dir); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
	}
	n, err := node.Start(ctx, node.Config{
		Box:     box.Config{Dir: dir, Simulated: d.driver.simulated, Keep: d.keep},
		Prepare: d.driver.prepare,
		Images:  []func(context.Context) (string, error){images.Agent},
		Stage:   d.out.Stage,
	})
	if err != nil {
		if b, openErr := box.Open(dir); openErr == nil {
			return &runningError{err, b.Keeper()}
		}
		return errors.Join(err, os.RemoveAll(dir))
	}
	d.node = n
	return nil
}

// deploy deploys the agent and waits until the node advertises its GPUs.
func (d *demo) deploy(ctx context.Context) error {
	done := d.out.Stage("gpucdi")
	manifest, err := node.AgentManifest(d.checkout, "1s")
	if err != nil {
		return err
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

// awaitGPUs waits until all GPUs of the node are allocatable.
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
			return fmt.Errorf("waiting for %d allocatable GPUs: node has %q; agent log:\n%s",
				d.driver.gpus, out, d.agentLog())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (d *demo) agentLog() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := d.node.Kubectl(ctx, "logs", "--namespace", "gpucdi", "daemonset/gpucdi", "--tail", "20")
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

// podCommands returns commands that list the GPUs and driver files in the pod.
func podCommands() []string {
	return []string{
		"nvidia-smi -L",
		"ls -l /dev/nvidia*",
		"cd /usr/lib/*-linux-gnu && ls -C -T0 libcuda* libnvidia*",
	}
}

// runPod runs a pod that requests GPUs, and prints the output of podCommands in this pod.
func (d *demo) runPod(ctx context.Context) error {
	done := d.out.Stage(fmt.Sprintf("pod with %d GPUs", d.driver.request()))
	if err := d.node.Apply(ctx, fmt.Appendf(nil, pod, d.driver.request())); err != nil {
		return err
	}
	if _, err := d.node.Kubectl(ctx, "wait", "pod/demo", "--for=condition=Ready", "--timeout=60s"); err != nil {
		events, _ := d.node.Kubectl(ctx, "describe", "pod", "demo")
		return fmt.Errorf("%w\n%s", err, events)
	}
	done()
	d.out.Total()
	d.out.Printf("\nIn the pod:")
	for _, command := range podCommands() {
		out, err := d.node.Kubectl(ctx, "exec", "demo", "--", "sh", "-c", command)
		if err != nil {
			return err
		}
		d.out.Printf("\n  $ %s\n%s", command, indent(out))
	}
	d.out.Printf("")
	return nil
}

func indent(text []byte) string {
	return "  " + strings.ReplaceAll(string(bytes.TrimSpace(text)), "\n", "\n  ")
}

func (d *demo) stop() error {
	done := d.out.Stage("removing the node")
	if err := d.node.Close(); err != nil {
		d.out.Fail()
		return &runningError{err, d.node.Box.Keeper()}
	}
	done()
	return nil
}

// runningError is a failure after which the node may keep running.
type runningError struct {
	cause  error
	keeper int
}

func (e *runningError) Error() string {
	return fmt.Sprintf("%v; the node may keep running, remove it with kill %d", e.cause, e.keeper)
}

func (e *runningError) Unwrap() error { return e.cause }
