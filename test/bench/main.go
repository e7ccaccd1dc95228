// Command bench measures what a device plugin costs its node, on the program that ships and on
// NVIDIA's own, which it builds from their modules, and prints tables:
//
//	go run ./bench
//
// It needs root, since it makes the nodes of a simulated driver and runs containers, and what
// the package container needs. Machines differ and are noisy, so what counts is measured against
// something in the same run: gpucdi and NVIDIA's programs in turn, over the same simulated GPUs
// and the same kubelet; a call beside one that does nothing; a container beside one without a GPU.
// Nothing fails for being slow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gpucdi/gpucdi/test/node/tools"
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
	// Not on an overlay: a box is made here.
	dir, err := os.MkdirTemp("", "gpucdi-bench-")
	if err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	b := &bench{
		dir:          dir,
		pluginTable:  table{nvidia: "NVIDIA's device plugin " + strings.TrimPrefix(tools.NVIDIAPluginVersion, "v")},
		toolkitTable: table{nvidia: "NVIDIA's container toolkit " + strings.TrimPrefix(tools.NVIDIAToolkitVersion, "v")},
	}
	defer b.close()
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"building gpucdi and NVIDIA's programs", b.build},
		{"installing the simulated driver", b.install},
		{fmt.Sprintf("starting the plugins %d times", startCount), b.starts},
		{fmt.Sprintf("%d of each call, 8 GPUs", manyTurns*turn), b.eight},
		{fmt.Sprintf("%d of each call, 16 GPUs", fewTurns*turn), b.sixteen},
		{fmt.Sprintf("scraping the agent %d times", scrapeCount), b.scrapes},
		{fmt.Sprintf("idling for %s, then %d calls", 2*idle, load), b.live},
		{fmt.Sprintf("generating %d specs", 6*generateCount), b.generates},
		{fmt.Sprintf("starting %d containers", 4*containerCount), b.containers},
	} {
		if err := stage(s.name, func() error { return s.do(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := errors.Join(b.pluginTable.write(os.Stdout), b.toolkitTable.write(os.Stdout)); err != nil {
		return err
	}
	_, err = fmt.Println("\nTimes are medians. The aim is for the ratio where it ends with x, else for gpucdi.")
	return err
}

// stage says what is done and how long it took.
func stage(name string, do func() error) error {
	fmt.Fprintf(os.Stderr, "%-40s", name)
	began := time.Now()
	err := do()
	fmt.Fprintf(os.Stderr, "%6.1f s\n", time.Since(began).Seconds())
	return err
}

// bench is what the stages have in common.
type bench struct {
	programs
	dir                       string
	nodes                     struct{ eight, sixteen *node }
	pluginTable, toolkitTable table
}
