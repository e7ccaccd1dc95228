package sockets

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHasListener(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "live.sock")})
	if err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "stale.sock")})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	for name, want := range map[string]bool{"live.sock": true, "stale.sock": false, "missing.sock": false} {
		if got := HasListener(t.Context(), filepath.Join(dir, name)); got != want {
			t.Errorf("HasListener(%s) = %t", name, got)
		}
	}
	listener.Close()
}

func TestIdentify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func() Identity {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := Identify(path)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := write()
	if again, err := Identify(path); err != nil || again != first {
		t.Errorf("the same file has identities %v and %v, error %v", first, again, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Identify(path); !os.IsNotExist(err) {
		t.Errorf("error %v for a missing file", err)
	}
	if second := write(); second == first {
		t.Errorf("another file has the same identity %v", second)
	}
}

// The directory is created, gets files and is replaced while it is watched.
func TestWatcher(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	changed := make(chan struct{}, 1)
	w := Watcher{
		Dir:      dir,
		Relevant: func(name string) bool { return strings.HasSuffix(name, ".sock") },
		Changed:  changed,
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.Run(ctx); close(ended) }()
	// Each step is repeated until a notification arrives, because the watch may start after it.
	notified := func(what string, change func()) {
		t.Helper()
		deadline := time.After(30 * time.Second)
		for {
			change()
			select {
			case <-changed:
				return
			case <-time.After(20 * time.Millisecond):
			case <-deadline:
				t.Fatalf("no notification of %s", what)
			}
		}
	}
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// quiet waits until no notification of an earlier step can arrive.
	quiet := func() {
		for ended := false; !ended; {
			select {
			case <-changed:
			case <-time.After(200 * time.Millisecond):
				ended = true
			}
		}
	}
	notified("the start", func() {})
	for _, what := range []string{"a new directory", "a replaced directory"} {
		notified(what, func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		})
		quiet()
		touch("other")
		select {
		case <-changed:
			t.Errorf("notification of a file that is not relevant, in %s", what)
		case <-time.After(200 * time.Millisecond):
		}
		notified("a file in "+what, func() {
			_ = os.Remove(filepath.Join(dir, "a.sock"))
			touch("a.sock")
		})
	}
	cancel()
	<-ended
}

// A directory that exists but cannot be watched is polled, and the cause is logged once.
func TestWatcherPollsWithoutWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Symlink(dir, dir); err != nil { // too many levels of symbolic links
		t.Fatal(err)
	}
	var log strings.Builder
	changed := make(chan struct{}, 1)
	w := Watcher{Dir: dir, Relevant: func(string) bool { return true }, Changed: changed, Log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.Run(ctx); close(ended) }()
	for i := range 3 {
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d notifications", i)
		}
	}
	cancel()
	<-ended
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "directory not watched, polling") {
		t.Errorf("the log is %q", log.String())
	}
}
