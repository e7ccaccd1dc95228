// Command gpucdi-sim changes the simulated driver of a node that "KEEP=1 make demo" has started: it raises faults,
// removes GPUs, partitions them, and upgrades the driver, while pods run. The demo installs gpucdi-sim in the node's
// state directory; gpucdi-sim finds the node by its own path. Several instances may run concurrently.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/gpucdi/gpucdi/test/box"
)

// The exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newCommand(findNode).ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "gpucdi-sim:", err)
	if errors.As(err, new(usageError)) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

// A node has a simulated driver below Root. Close removes the node.
type node interface {
	Root() string
	Close() error
}

// findNode returns the node whose state directory contains this program.
func findNode() (node, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("changing the simulated driver requires root; run it as root")
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the node: %w", err)
	}
	b, err := box.Open(filepath.Dir(filepath.Dir(program)))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; start a node with KEEP=1 make demo, and run the program that it installs", err)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the node: %w", err)
	}
	return b, nil
}
