package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// await fails the test unless something arrives.
func await(t *testing.T, c <-chan update[changed], what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("no change of the config is seen after %s", what)
	}
}

// A directory of the config that goes is watched again when it is back, whichever way
// it went.
func TestTheConfigIsWatchedAgain(t *testing.T) {
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
		"a link to another": func(t *testing.T, dir string) {
			other := dir + ".new"
			write(t, filepath.Join(other, "config.yaml"))
			must(t, os.Rename(dir, dir+".old"))
			must(t, os.Symlink(other, dir))
		},
		"the link leads elsewhere": func(t *testing.T, dir string) {
			// dir is a link already; see below.
			must(t, os.Mkdir(dir+".elsewhere", 0o755))
			must(t, os.Symlink(dir+".elsewhere", dir+".link"))
			must(t, os.Rename(dir+".link", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "config")
			file := filepath.Join(dir, "config.yaml")
			if name == "the link leads elsewhere" {
				must(t, os.Mkdir(dir+".first", 0o755))
				must(t, os.Symlink(dir+".first", dir))
			}
			write(t, file)
			a := New(Config{ConfigFile: file}, slog.New(slog.DiscardHandler))
			updates, ended := make(chan update[changed], 1), make(chan struct{})
			go func() { follow(a.watchConfig, updates, a.log, "not watched")(t.Context()); close(ended) }()
			t.Cleanup(func() { <-ended })
			await(t, updates, "the start")

			replaceDir(t, dir)
			write(t, file)
			await(t, updates, "the directory was replaced")
			// That may come from the watch of the old directory, so once more.
			for start := time.Now(); len(updates) == 0; time.Sleep(500 * time.Millisecond) {
				write(t, file)
				if time.Since(start) > 30*time.Second {
					t.Fatal("no change of the config is seen in the new directory")
				}
			}
		})
	}
}

// A source that fails is watched again, ever later. The same failure is delivered and logged once.
func TestFollowASourceThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		begin, works := time.Now(), 40*time.Second
		var watched []time.Duration
		source := func(ctx context.Context, yield func(string)) error {
			watched = append(watched, time.Since(begin)/time.Second)
			if time.Since(begin) < works {
				return errors.New("missing")
			}
			yield("content")
			<-ctx.Done()
			return nil
		}
		var log bytes.Buffer
		updates, ended := make(chan update[string], 1), make(chan struct{})
		go func() {
			follow(source, updates, slog.New(slog.NewTextHandler(&log, nil)), "not watched")(ctx)
			close(ended)
		}()
		if u := <-updates; u.err == nil {
			t.Errorf("the first that is delivered is %v", u)
		}
		if u := <-updates; u.err != nil || u.value != "content" || time.Since(begin) < works {
			t.Errorf("%v after the start, %v is delivered", time.Since(begin), u)
		}
		end()
		<-ended
		if want := []time.Duration{0, 1, 3, 7, 15, 25, 35, 45}; !slices.Equal(watched, want) {
			t.Errorf("the source is watched %d seconds after the start, want %d", watched, want)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 {
			t.Errorf("%d lines are logged:\n%s", lines, log.String())
		}
	})
}

// The first failure after a value is tolerated: what failed may be in the middle of being replaced.
func TestFollowASourceThatIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		begin := time.Now()
		source := func(_ context.Context, yield func(string)) error {
			if time.Since(begin) < 2*time.Second {
				yield("content")
			}
			return errors.New("replaced")
		}
		updates, ended := make(chan update[string], 1), make(chan struct{})
		go func() { follow(source, updates, slog.New(slog.DiscardHandler), "not watched")(ctx); close(ended) }()
		for _, after := range []time.Duration{0, time.Second} {
			if u := <-updates; u.err != nil || time.Since(begin) != after {
				t.Errorf("%v after the start, %v is delivered", time.Since(begin), u)
			}
		}
		if u := <-updates; u.err == nil || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after the start, %v is delivered", time.Since(begin), u)
		}
		end()
		<-ended
	})
}
