// Command bench compares the speed and memory of gpucdi and of NVIDIA's programs, which it builds from their modules,
// and prints tables:
//
//	go run ./bench
//
// It requires root, for device nodes and containers, and the Debian machine of package container. Since machines differ
// and are noisy, values are compared within a run: gpucdi and NVIDIA's programs in turn, with the same simulated GPUs
// and the same kubelet; a call with an empty call; a container with one without a GPU. The exit code does not depend on
// the values.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	// TMPDIR must not be on an overlay: the directory contains the upper layers of a box.
	dir, err := os.MkdirTemp("", "gpucdi-bench-")
	if err != nil {
		return fmt.Errorf("creating a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	b := &bench{
		dir:          dir,
		pluginTable:  table{nvidia: "NVIDIA's device plugin " + strings.TrimPrefix(tools.NVIDIAPluginVersion, "v")},
		toolkitTable: table{nvidia: "NVIDIA's container toolkit " + strings.TrimPrefix(tools.NVIDIAToolkitVersion, "v")},
	}
	defer b.close()
	out := progress.New(os.Stderr, 40)
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"building gpucdi and NVIDIA's programs", b.build},
		{"installing the simulated driver", b.install},
		{fmt.Sprintf("starting the plugins %d times", startCount), b.starts},
		{fmt.Sprintf("making each call %d times, 8 GPUs", manyTurns*turn), b.eight},
		{fmt.Sprintf("making each call %d times, 16 GPUs", fewTurns*turn), b.sixteen},
		{fmt.Sprintf("scraping the agent %d times", scrapeCount), b.scrapes},
		{fmt.Sprintf("idling for %s, then %d calls", 2*idle, load), b.live},
		{fmt.Sprintf("generating %d specs", 6*generateCount), b.generates},
		{fmt.Sprintf("starting %d containers", 4*containerCount), b.containers},
	} {
		done := out.Stage(s.name)
		if err := s.do(ctx); err != nil {
			out.Fail()
			return fmt.Errorf("%s: %w", s.name, err)
		}
		done()
	}
	if err := errors.Join(b.pluginTable.write(os.Stdout), b.toolkitTable.write(os.Stdout)); err != nil {
		return err
	}
	_, err = fmt.Println("\nTimes are medians. A target that ends with x is a ratio; others are values of gpucdi.")
	return err
}

// bench is the state that stages share.
type bench struct {
	programs
	dir                       string
	nodes                     struct{ eight, sixteen *node }
	pluginTable, toolkitTable table
}
