package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/config"
)

func TestWatchReportsFileThatChangesContinuously(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- config.Watch(t.Context(), path, func() { changed <- struct{}{} }) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for start := time.Now(); len(changed) == 0; time.Sleep(50 * time.Millisecond) {
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > 30*time.Second {
			t.Fatal("no change reported")
		}
	}
}

func TestWatchRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- config.Watch(t.Context(), "config.yaml", func() { changed <- struct{}{} }) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-changed // at the start
	for start := time.Now(); len(changed) == 0; time.Sleep(500 * time.Millisecond) {
		if err := os.WriteFile("config.yaml", []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > 30*time.Second {
			t.Fatal("no change reported")
		}
	}
}
