package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spec.yaml")
	accept := func(string) error { return nil }
	for _, content := range []string{"one", "two"} {
		if err := host.WriteFile(path, []byte(content), 0o644, accept); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil || string(data) != content {
			t.Fatalf("read %q, %v", data, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != fs.FileMode(0o644) {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	blocked := filepath.Join(filepath.Dir(path), "is-a-directory")
	if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := host.WriteFile(blocked, []byte("x"), 0o644, accept); err == nil {
		t.Error("writing to a directory did not fail")
	}
	reject := func(temporary string) error { return fmt.Errorf("%s is rejected", temporary) }
	err = host.WriteFile(path, []byte("three"), 0o644, reject)
	if want := "writing " + path + ": " + path + " is rejected"; err == nil || err.Error() != want {
		t.Errorf("rejected file: got error %v, want %s", err, want)
	}
	missing := filepath.Join(path, "file")
	if err := host.WriteFile(missing, nil, 0o644, accept); !errors.Is(err, unix.ENOTDIR) || strings.Count(err.Error(), missing) != 2 {
		t.Errorf("parent is not a directory: got error %v, want ENOTDIR", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "two" {
		t.Errorf("after a rejected file: %q, %v", data, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("got the entries %v, %v, want two", entries, err)
	}
}

// A process that is killed while it writes a file does not remove its temporary file.
func TestWriteFileRemovesStaleTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	kept := map[string]bool{ // by name
		".spec.json.1111": false,
		".spec.json.2222": true, // recent: another process may be writing it
		".spec.json.bak":  true,
		".spec.json.":     true,
		".spec.json.3.3":  true,
		".spec.jsonx.444": true,
		".other.json.555": true,
		"spec.json.6666":  true,
		".spec.json.7777": true, // a directory
		".spec.json.8888": true, // a symlink
	}
	old := time.Now().Add(-2 * time.Hour)
	for name := range kept {
		switch name {
		case ".spec.json.7777":
			if err := os.Mkdir(at(name), 0o755); err != nil {
				t.Fatal(err)
			}
		case ".spec.json.8888":
			if err := os.Symlink("spec.json.6666", at(name)); err != nil {
				t.Fatal(err)
			}
		default:
			write(t, at(name), "x")
		}
		if name != ".spec.json.2222" {
			if err := os.Chtimes(at(name), old, old); err != nil && name != ".spec.json.8888" {
				t.Fatal(err)
			}
		}
	}
	times := []unix.Timeval{unix.NsecToTimeval(old.UnixNano()), unix.NsecToTimeval(old.UnixNano())}
	if err := unix.Lutimes(at(".spec.json.8888"), times); err != nil {
		t.Fatal(err)
	}
	if err := host.WriteFile(at("spec.json"), []byte("{}"), 0o644, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for name, want := range kept {
		if _, err := os.Lstat(at(name)); (err == nil) != want {
			t.Errorf("%s: exists %t, want %t", name, err == nil, want)
		}
	}
}
