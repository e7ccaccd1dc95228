package mps

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

// A program that cannot be started is reported, and the socket of an earlier daemon is removed, so that commands fail
// immediately.
func TestDaemonNotStarted(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":  "",
		"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1": "",
		"usr/bin/nvidia-cuda-mps-control":             "no program",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, socketName)
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := Daemon{Program: Program{Node: host.NewRoot(root)}, Dir: dir, Log: slog.New(slog.DiscardHandler)}
	if err := d.serve(t.Context()); err == nil || !strings.Contains(err.Error(), "running /usr/bin/nvidia-cuda-mps-control") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket: %v", err)
	}
}

// The end of ctx is no error, even while another process has the lock.
func TestDaemonEndsWhileItWaits(t *testing.T) {
	d := Daemon{Program: Program{Node: host.NewRoot(t.TempDir())}, Dir: t.TempDir()}
	lock, err := os.Create(filepath.Join(d.Dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d.Log = slog.New(slog.NewTextHandler(writer(func(string) { cancel() }), nil)) // it logs that it waits
	if err := d.Run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("error %v, waited %t", err, ctx.Err() != nil)
	}
}

type writer func(text string)

func (w writer) Write(text []byte) (int, error) {
	w(string(text))
	return len(text), nil
}
