// Command bench measures what a device plugin costs its node, on the program that ships, and
// prints a table:
//
//	go run ./bench
//
// It needs root, since it makes the nodes of a simulated driver and runs containers, and what
// the package container needs. Its numbers are medians; machines differ and are noisy, so what
// counts is measured against something in the same run: a call beside one that does nothing, a
// container beside one without a GPU. Nothing fails for being slow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpucdi/gpucdi/test/product"
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

	b := &bench{dir: dir}
	defer b.close()
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"building gpucdi", b.build},
		{"installing the simulated driver", b.install},
		{fmt.Sprintf("starting the agent %d times", startCount), b.starts},
		{fmt.Sprintf("%d rounds of calls, 8 GPUs", rounds), b.eight},
		{fmt.Sprintf("%d rounds of calls, 16 GPUs", rounds), b.sixteen},
		{fmt.Sprintf("scraping the agent %d times", scrapeCount), b.scrapes},
		{fmt.Sprintf("idling for %s, then %d calls", 2*idle, load), b.live},
		{fmt.Sprintf("generating %d specs", 2*generateCount), b.generates},
		{fmt.Sprintf("starting %d pairs of containers", 2*pairs), b.containers},
	} {
		if err := stage(s.name, func() error { return s.do(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return b.table.write(os.Stdout)
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
	dir, product string
	nodes        struct{ eight, sixteen *node }
	table        table
}

func (b *bench) build(ctx context.Context) (err error) {
	b.product, err = product.Build(ctx, b.dir)
	return err
}
