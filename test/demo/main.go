// Command demo is the program of "make demo". It starts a Kubernetes node in a box on this machine, with the machine's
// NVIDIA driver or a simulated one, deploys the agent from its image and manifest, schedules a pod that requests two
// GPUs (one if the machine has only one), and prints the GPUs and driver files in the pod.
//
// It then removes the node. With KEEP=1 in the environment, the node keeps running, even if the demo fails after the
// node has started, and the program prints the commands to use, change and remove the node. An interrupt removes the
// node.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/progress"
)

// errInterrupted replaces the errors that an interrupt causes, once the node is removed.
var errInterrupted = errors.New("interrupted; nothing keeps running, and build results are kept for the next run")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{out: progress.New(os.Stdout, 18), keep: os.Getenv("KEEP") == "1", driver: findDriver()}
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func (d *demo) run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("creating namespaces, mounts and device nodes requires root; run it as root")
	}
	d.out.Printf("gpucdi on a Kubernetes node in a box, with %s", d.driver)
	built, err := tools.Built(ctx, tools.Kube)
	if err != nil {
		return err
	}
	if !built {
		d.out.Printf("The first run builds Kubernetes from source, which takes about ten minutes on two cores.")
	}
	d.out.Printf("")
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return err
	}
	d.checkout = filepath.Dir(module)
	d.path = filepath.Join(d.checkout, "bin/demo")
	return d.finish(ctx, d.show(ctx))
}

// show starts the node and runs a pod with GPUs on it.
func (d *demo) show(ctx context.Context) error {
	steps := []func(context.Context) error{d.start, d.deploy, d.runPod}
	if d.keep {
		steps = []func(context.Context) error{d.start, d.install, d.deploy, d.runPod}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish keeps or removes the node. err is the result of show.
func (d *demo) finish(ctx context.Context, err error) error {
	if err != nil {
		d.out.Fail()
	}
	interrupted := ctx.Err() != nil
	switch {
	case d.node == nil: // removed by start
	case d.keep && !interrupted:
		d.printCommands()
	default:
		err = errors.Join(err, d.stop())
	}
	if interrupted && !errors.As(err, new(*runningError)) {
		return errInterrupted
	}
	return err
}
