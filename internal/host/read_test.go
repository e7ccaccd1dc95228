package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

// within fails the test if do does not return in time: opening a named pipe without a writer blocks forever.
func within(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the call blocks")
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("file"), "12345678")
	err := errors.Join(
		os.Symlink("file", at("link")),
		os.Symlink("nothing", at("dangling")),
		os.Symlink("loop", at("loop")),
		os.Symlink("/dev/null", at("device")),
		unix.Mkfifo(at("pipe"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		limit int64
		want  string // contained in the error; empty if none
	}{
		"file":     {8, ""},
		"link":     {8, ""},
		"./file":   {7, "larger than 7 bytes"},
		"dangling": {8, "no such file"},
		"loop":     {8, "too many levels of symbolic links"},
		"device":   {8, "not a regular file"},
		"pipe":     {8, "not a regular file"},
		".":        {8, "not a regular file"},
	} {
		within(t, func() {
			data, err := host.ReadFile(at(name), tc.limit)
			switch {
			case tc.want == "" && (err != nil || string(data) != "12345678"):
				t.Errorf("%s: %q, %v", name, data, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir)):
				t.Errorf("%s: got error %v, want one with the path and %q", name, err, tc.want)
			}
		})
	}
	if _, err := host.ReadFile(at("dangling"), 8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestRootReadFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "nvidia_icd.json"), "{")
	if err := os.Truncate(filepath.Join(dir, "nvidia_icd.json"), 1<<30); err != nil { // sparse
		t.Fatal(err)
	}
	data, err := host.NewRoot(dir).ReadFile("/nvidia_icd.json")
	if err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %d bytes, %v, want an error", len(data), err)
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	if names, err := host.Names(dir, 2); err != nil || len(names) != 0 {
		t.Errorf("empty directory: %v, %v", names, err)
	}
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(dir, name), "")
	}
	for limit, want := range map[int]int{2: 2, 3: 3, 4: 3} {
		if names, err := host.Names(dir, limit); err != nil || len(names) != want {
			t.Errorf("limit %d: %v, %v", limit, names, err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	within(t, func() {
		if names, err := host.Names(pipe, 1); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("named pipe: got %v, %v, want ENOTDIR", names, err)
		}
	})
}
