// Command demo is behind "make demo": it brings up a Kubernetes node in a box on this machine,
// with the machine's NVIDIA driver or else a simulated one, runs the agent on it from its
// image and manifest, schedules a pod that asks for two GPUs, and prints what the pod sees.
//
// At the end everything is gone. With KEEP=1 in the environment the node stays, and the
// program prints how to go on with it and how to end it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := newProgress(os.Stdout)
	if err := run(ctx, out, os.Getenv("KEEP") == "1"); err != nil {
		out.abandon()
		if ctx.Err() != nil {
			err = errors.New("interrupted; what had been started is gone, what had been built is kept for the next time")
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out *progress, keep bool) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("this makes namespaces, mounts and device nodes: run it as root")
	}
	d := &demo{out: out, keep: keep, driver: findDriver()}
	out.say("gpucdi on a Kubernetes node in a box, over %s", d.driver.describe())
	built, err := tools.Built(ctx, tools.Kube)
	if err != nil {
		return err
	}
	if !built {
		out.say("The first time this builds Kubernetes from source: ten minutes or so on two cores.")
	}
	out.say("")
	if err := d.start(ctx); err != nil {
		return err
	}
	if !keep {
		defer func() { err = errors.Join(err, d.end()) }()
	}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	if keep {
		d.farewell()
	}
	return nil
}
