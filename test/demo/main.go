// Command demo is the program of "make demo". It starts a Kubernetes node in a box on this machine, with the machine's
// NVIDIA driver or a simulated one, deploys the agent from its image and manifest, schedules a pod that requests two
// GPUs, and prints the GPUs and driver files in the pod.
//
// It then removes the node. With KEEP=1 in the environment, the node keeps running, and the program prints the commands
// to use and to remove it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := progress.New(os.Stdout, 18)
	if err := run(ctx, out, os.Getenv("KEEP") == "1"); err != nil {
		out.Fail()
		if ctx.Err() != nil {
			err = errors.New("interrupted; nothing keeps running, and build results are kept for the next run")
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out *progress.Progress, keep bool) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("creating namespaces, mounts and device nodes requires root; run it as root")
	}
	d := &demo{out: out, keep: keep, driver: findDriver()}
	out.Printf("gpucdi on a Kubernetes node in a box, with %s", d.driver)
	built, err := tools.Built(ctx, tools.Kube)
	if err != nil {
		return err
	}
	if !built {
		out.Printf("The first run builds Kubernetes from source, which takes about ten minutes on two cores.")
	}
	out.Printf("")
	if err := d.start(ctx); err != nil {
		return err
	}
	if !keep {
		defer func() { err = errors.Join(err, d.stop()) }()
	}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	if err := d.runPod(ctx); err != nil {
		return err
	}
	if keep {
		d.printCommands()
	}
	return nil
}
