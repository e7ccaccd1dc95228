package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/progress"
)

// started returns a demo in the middle of a stage, whose node is a box without Kubernetes. output returns the text that
// the demo has printed.
func started(t *testing.T, keep bool) (d *demo, output func() string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "box")
	b, err := box.Start(t.Context(), box.Config{Dir: dir, Keep: keep})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if exists(dir) {
			_ = b.Close()
		}
	})
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	d = &demo{out: progress.New(out, 18), keep: keep, node: &node.Node{Box: b}}
	d.out.Stage("gpucdi")
	return d, func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestFailure(t *testing.T) {
	failed := errors.New("waiting for 8 allocatable GPUs")
	d, output := started(t, false)
	if err := d.finish(t.Context(), failed); !errors.Is(err, failed) || exists(d.node.Box.Dir()) {
		t.Errorf("finish returned %v; the node still runs: %t", err, exists(d.node.Box.Dir()))
	}
	if !regexp.MustCompile(`^  gpucdi +\n  removing the node +\d+\.\d s\n$`).MatchString(output()) {
		t.Errorf("printed %q", output())
	}
}

// A kept node keeps running for debugging after a failure, and the output has a command that removes it.
func TestFailureOfKeptNode(t *testing.T) {
	failed := errors.New("waiting for 8 allocatable GPUs")
	d, output := started(t, true)
	if err := d.finish(t.Context(), failed); !errors.Is(err, failed) || !exists(d.node.Box.Dir()) {
		t.Errorf("finish returned %v; the node still runs: %t", err, exists(d.node.Box.Dir()))
	}
	command := regexp.MustCompile(`(?m)^    (kill \d+)$`).FindStringSubmatch(output())
	if !strings.Contains(output(), "The node keeps running.") || command == nil {
		t.Fatalf("printed no command to remove the node:\n%s", output())
	}
	sh(t, "", command[1])
	for start := time.Now(); exists(d.node.Box.Dir()); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%s did not remove the node", command[1])
		}
	}
}

// After an interrupt nothing keeps running. finish returns errInterrupted only if the node was removed.
func TestInterrupt(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep %t", keep), func(t *testing.T) {
			d, output := started(t, keep)
			ctx, interrupt := context.WithCancel(t.Context())
			interrupt()
			err := d.finish(ctx, fmt.Errorf("kubectl: %w", ctx.Err()))
			if !errors.Is(err, errInterrupted) || exists(d.node.Box.Dir()) {
				t.Errorf("finish returned %v; the node still runs: %t", err, exists(d.node.Box.Dir()))
			}
			if strings.Contains(output(), "keeps running") {
				t.Errorf("printed:\n%s", output())
			}
			if err := d.finish(ctx, ctx.Err()); errors.Is(err, errInterrupted) || !strings.Contains(err.Error(), "kill ") {
				t.Errorf("the node could not be removed, and finish returned %v", err)
			}
		})
	}
}

func TestLink(t *testing.T) {
	d := &demo{path: filepath.Join(t.TempDir(), "bin/demo")}
	ended := t.TempDir()
	running, _ := started(t, true)
	for _, dir := range []string{ended, running.node.Box.Dir()} {
		if err := d.link(dir); err != nil {
			t.Fatal(err)
		}
		if target, err := os.Readlink(d.path); err != nil || target != filepath.Join(dir, programDir) {
			t.Errorf("link points to %s, %v", target, err)
		}
	}
	if err := d.link(ended); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("kill %d", running.node.Box.Keeper())) {
		t.Errorf("linking a second node while the first runs: %v", err)
	}
}
