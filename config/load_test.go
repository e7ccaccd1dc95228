package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/config"
)

func TestLoadRejectsIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("kind: NodeConfig\n"), 0o600),
		os.Symlink("file", at("link")), // as in the directory of a ConfigMap
		os.Symlink("nowhere", at("dangling")),
		os.Symlink("loop", at("loop")),
		os.Symlink("/dev/zero", at("device")),
		os.WriteFile(at("large"), []byte("# "+strings.Repeat("x", 1<<20)), 0o600),
		unix.Mkfifo(at("pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"file": "", "link": "", "dangling": "no such file", "loop": "symbolic links", "device": "not a regular file",
		"large": "larger than", "pipe": "not a regular file", ".": "not a regular file",
	} {
		loaded := make(chan error, 1)
		go func() {
			_, err := config.Load(at(name))
			loaded <- err
		}()
		select {
		case err := <-loaded:
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: error %v, want %q", name, err, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: Load blocks", name)
		}
	}
}
