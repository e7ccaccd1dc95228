package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// muslBundle creates a bundle with musl, and returns the path of its search path file and the OCI state.
func muslBundle(t *testing.T) (list, state string) {
	t.Helper()
	root, state := bundle(t)
	if err := os.Mkdir(filepath.Join(root, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, muslLoader), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, etcDir, muslList), state
}

func TestHookUpdatesMuslList(t *testing.T) {
	for _, tc := range []struct{ name, before, after string }{
		{"no list", "", "/lib\n/usr/local/lib\n/usr/lib\n/usr/lib/x86_64-linux-gnu\n"},
		{"list without the directory", "/opt/lib:/lib\n", "/opt/lib\n/lib\n/usr/lib/x86_64-linux-gnu\n"},
		{"list with the directory", "/usr/lib/x86_64-linux-gnu:/lib", "/usr/lib/x86_64-linux-gnu:/lib"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, state := muslBundle(t)
			if tc.before != "" {
				if err := os.WriteFile(list, []byte(tc.before), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second run adds nothing
				if err := hook([]string{library, filepath.Join(filepath.Dir(library), "libcuda.so")}, strings.NewReader(state)); err != nil {
					t.Fatal(err)
				}
				if after, err := os.ReadFile(list); err != nil || string(after) != tc.after {
					t.Errorf("got list %q, %v", after, err)
				}
			}
			if info, err := os.Stat(list); err != nil || info.Mode() != 0o644 {
				t.Errorf("got mode %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestHookWithoutMusl(t *testing.T) {
	root, state := bundle(t)
	if err := hook([]string{library}, strings.NewReader(state)); err != nil {
		t.Fatal(err)
	}
	if lists, err := filepath.Glob(filepath.Join(root, "etc/ld-musl-*")); err != nil || len(lists) > 0 {
		t.Errorf("got files %q, %v", lists, err)
	}
}

func TestHookRejectsMuslList(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(list string) error
		want  string
	}{
		{"symlink", func(list string) error { return os.Symlink("/etc/passwd", list) }, "not a regular file"},
		{"named pipe", func(list string) error { return unix.Mkfifo(list, 0o644) }, "not a regular file"},
		{"too large", func(list string) error {
			return os.WriteFile(list, make([]byte, maxMuslList+1), 0o600)
		}, "larger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, state := muslBundle(t)
			if err := tc.setup(list); err != nil {
				t.Fatal(err)
			}
			if err := hook([]string{library}, strings.NewReader(state)); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "/etc/"+muslList) {
				t.Errorf("got error %v, want it to contain %q", err, tc.want)
			}
		})
	}
}
