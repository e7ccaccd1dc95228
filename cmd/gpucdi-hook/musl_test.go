package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// muslBundle is a bundle of an image with musl.
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

func TestHookLetsMuslSearchTheDriver(t *testing.T) {
	for _, tc := range []struct{ name, before, after string }{
		{"with no list", "", "/lib\n/usr/local/lib\n/usr/lib\n/usr/lib/x86_64-linux-gnu\n"},
		{"with a list", "/opt/lib:/lib\n", "/opt/lib\n/lib\n/usr/lib/x86_64-linux-gnu\n"},
		{"with one that has it", "/usr/lib/x86_64-linux-gnu:/lib", "/usr/lib/x86_64-linux-gnu:/lib"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, state := muslBundle(t)
			if tc.before != "" {
				if err := os.WriteFile(list, []byte(tc.before), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second time there is nothing to add
				if err := hook([]string{library, filepath.Join(filepath.Dir(library), "libcuda.so")}, strings.NewReader(state)); err != nil {
					t.Fatal(err)
				}
				if after, err := os.ReadFile(list); err != nil || string(after) != tc.after {
					t.Errorf("the list is %q, %v", after, err)
				}
			}
			if info, err := os.Stat(list); err != nil || info.Mode() != 0o644 {
				t.Errorf("the list has mode %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestHookMakesNoListWithoutMusl(t *testing.T) {
	root, state := bundle(t)
	if err := hook([]string{library}, strings.NewReader(state)); err != nil {
		t.Fatal(err)
	}
	if lists, err := filepath.Glob(filepath.Join(root, "etc/ld-musl-*")); err != nil || len(lists) > 0 {
		t.Errorf("there are %q, %v", lists, err)
	}
}

func TestHookRefusesAMuslList(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(list string) error
		says string
	}{
		{"that is a link", func(list string) error { return os.Symlink("/etc/passwd", list) }, "no regular file"},
		{"that is a pipe", func(list string) error { return unix.Mkfifo(list, 0o644) }, "no regular file"},
		{"that is too large", func(list string) error {
			return os.WriteFile(list, make([]byte, maxMuslList+1), 0o600)
		}, "larger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, state := muslBundle(t)
			if err := tc.make(list); err != nil {
				t.Fatal(err)
			}
			if err := hook([]string{library}, strings.NewReader(state)); err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "/etc/"+muslList) {
				t.Errorf("it says %v", err)
			}
		})
	}
}
