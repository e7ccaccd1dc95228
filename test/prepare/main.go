// Command prepare is the first step of "make system". It builds the programs and images that system tests share, and
// caches them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/progress"
)

// stages run in this order. The builds require the Debian packages.
var stages = []struct {
	name string
	make func(context.Context) error
}{
	{"Debian packages", func(ctx context.Context) error { return tools.InstallPackages(ctx) }},
	{"runc", build(tools.Runc)},
	{"nerdctl", build(tools.Nerdctl)},
	{"Helm", build(tools.Helm)},
	{"containerd 2", build(tools.Containerd)},
	{"containerd 1.7", build(tools.Containerd17)},
	{"CRI-O", build(tools.CRIO)},
	{"Kubernetes 1.36", build(tools.Kube)},
	{"Kubernetes 1.34", build(tools.Kube134)},
	{"NVIDIA device plugin", build(tools.NVIDIAPlugin)},
	{"Debian image", discardPath(images.Debian)},
}

func build(tool tools.Tool) func(context.Context) error {
	return discardPath(func(ctx context.Context) (string, error) { return tools.Build(ctx, tool) })
}

// discardPath drops the path of the result: tests find it in the cache.
func discardPath(build func(context.Context) (string, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := build(ctx)
		return err
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := progress.New(os.Stdout, 24)
	for _, s := range stages {
		done := out.Stage(s.name)
		if err := s.make(ctx); err != nil {
			out.Fail()
			fmt.Fprintf(os.Stderr, "prepare: %s: %v\n", s.name, err)
			os.Exit(1)
		}
		done()
	}
	out.Total()
}
