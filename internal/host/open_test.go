package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Kernels before 5.6 lack openat2. The fallback must return the same results.
func TestOpenat2AndFallback(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("inside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"absolute": "/file", "climbing": "../../file", "outside": "/etc/passwd", "root": "/.."} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	r := NewRoot(dir)
	for method, opener := range map[string]func(string, int) (*os.File, error){"openat2": r.openat2, "fallback": r.openFallback} {
		open := func(name string, flags int) (*os.File, error) {
			file, err := opener(name, flags)
			t.Cleanup(func() { file.Close() }) // harmless if file is nil
			return file, err
		}
		for _, name := range []string{"/file", "/absolute", "/climbing"} {
			for _, flags := range []int{unix.O_PATH, unix.O_RDONLY} {
				if file, err := open(name, flags); err != nil {
					t.Errorf("%s: %s: %v", method, name, err)
				} else if info, err := file.Stat(); err != nil || info.Size() != int64(len("inside")) {
					t.Errorf("%s: %s is %v, %v", method, name, info, err)
				}
			}
		}
		if _, err := open("/outside", unix.O_PATH); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: symlink to a file outside: got %v, want not found", method, err)
		}
		if root, err := open("/root", unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			t.Errorf("%s: %v", method, err)
		} else if entries, err := root.ReadDir(-1); err != nil || len(entries) != 5 {
			t.Errorf("%s: got the entries %v of the root, %v", method, entries, err)
		}
	}
}

func TestReadDirIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range maxEntries + 1 {
		if i == maxEntries {
			if entries, err := NewRoot(dir).ReadDir("/"); err != nil || len(entries) != maxEntries {
				t.Errorf("got %d entries, %v, want %d", len(entries), err, maxEntries)
			}
		}
		if err := os.Symlink("x", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := NewRoot(dir).ReadDir("/"); err == nil {
		t.Errorf("got %d entries, want an error", len(entries))
	}
}
