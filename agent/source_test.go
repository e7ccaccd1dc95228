package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// await waits for an update of the config after an event.
func await(t *testing.T, c <-chan update[changed], event string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("no config update after: %s", event)
	}
}

// The config is watched again after its directory was replaced.
func TestConfigDirectoryReplaced(t *testing.T) {
	write := func(t *testing.T, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("apiVersion: gpucdi.dev/v1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, replaceDir := range map[string]func(t *testing.T, dir string){
		"removed": func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
		"moved":   func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".old")) },
		"replaced by a symlink": func(t *testing.T, dir string) {
			other := dir + ".new"
			write(t, filepath.Join(other, "config.yaml"))
			must(t, os.Rename(dir, dir+".old"))
			must(t, os.Symlink(other, dir))
		},
		"symlink changed": func(t *testing.T, dir string) {
			// dir is already a symlink; see below.
			must(t, os.Mkdir(dir+".elsewhere", 0o755))
			must(t, os.Symlink(dir+".elsewhere", dir+".link"))
			must(t, os.Rename(dir+".link", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "config")
			file := filepath.Join(dir, "config.yaml")
			if name == "symlink changed" {
				must(t, os.Mkdir(dir+".first", 0o755))
				must(t, os.Symlink(dir+".first", dir))
			}
			write(t, file)
			a := New(Config{ConfigFile: file}, slog.New(slog.DiscardHandler))
			updates, ended := make(chan update[changed], 1), make(chan struct{})
			go func() { follow(a.watchConfig, updates, a.log, "watch failed")(t.Context()); close(ended) }()
			t.Cleanup(func() { <-ended })
			await(t, updates, "start")

			replaceDir(t, dir)
			write(t, file)
			await(t, updates, "replacement of the directory")
			// That update may come from the watch of the old directory.
			for start := time.Now(); len(updates) == 0; time.Sleep(500 * time.Millisecond) {
				write(t, file)
				if time.Since(start) > 30*time.Second {
					t.Fatal("no config update in the new directory")
				}
			}
		})
	}
}

// A failed source is restarted with backoff. The same error is delivered and logged once.
func TestFollowFailingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		begin, failsFor := time.Now(), 40*time.Second
		var starts []time.Duration
		source := func(ctx context.Context, yield func(string)) error {
			starts = append(starts, time.Since(begin))
			if time.Since(begin) < failsFor {
				return errors.New("missing")
			}
			yield("content")
			<-ctx.Done()
			return nil
		}
		var log bytes.Buffer
		updates, ended := make(chan update[string], 1), make(chan struct{})
		go func() {
			follow(source, updates, slog.New(slog.NewTextHandler(&log, nil)), "watch failed")(ctx)
			close(ended)
		}()
		if u := <-updates; u.err == nil {
			t.Errorf("first update is %v, want an error", u)
		}
		if u := <-updates; u.err != nil || u.value != "content" || time.Since(begin) < failsFor {
			t.Errorf("after %v: update %v", time.Since(begin), u)
		}
		end()
		<-ended
		longest := retryFirst
		for i := 1; i < len(starts); i++ {
			if pause := starts[i] - starts[i-1]; pause < longest/2 || pause > longest {
				t.Errorf("source started after %s: pause %d is not from %s to %s", starts, i, longest/2, longest)
			}
			longest = min(2*longest, retryLimit)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 {
			t.Errorf("%d lines logged, want 1:\n%s", lines, log.String())
		}
	})
}

// The first failure after a value is tolerated: the file may be in the middle of being replaced.
func TestFollowReplacedSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		begin, starts := time.Now(), 0
		source := func(_ context.Context, yield func(string)) error {
			if starts++; starts <= 2 {
				yield("content")
			}
			return errors.New("replaced")
		}
		updates, ended := make(chan update[string], 1), make(chan struct{})
		go func() { follow(source, updates, slog.New(slog.DiscardHandler), "watch failed")(ctx); close(ended) }()
		for range 2 {
			if u := <-updates; u.err != nil {
				t.Errorf("after %v: update %v", time.Since(begin), u)
			}
		}
		if u := <-updates; u.err == nil || starts != 3 {
			t.Errorf("after %v: update %v", time.Since(begin), u)
		}
		end()
		<-ended
	})
}
