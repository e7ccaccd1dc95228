package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/ldcache"
)

const library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"

// bundle creates an OCI bundle, and returns its root file system and OCI state.
func bundle(t *testing.T) (root, state string) {
	t.Helper()
	dir := t.TempDir()
	root = filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(specs.Spec{Root: &specs.Root{Path: "rootfs"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return root, fmt.Sprintf(`{"ociVersion":"1.0.2","id":"x","status":"creating","pid":0,"bundle":%q}`, dir)
}

func TestHookCreatesCache(t *testing.T) {
	root, state := bundle(t)
	cache := filepath.Join(root, "etc/ld.so.cache")
	for range 2 { // the second run updates the cache
		if err := hook([]string{library}, strings.NewReader(state)); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("/sbin/ldconfig", "-p", "-C", cache).Output()
		if want := "\tlibcuda.so.1 (libc6,x86-64) => " + library + "\n"; err != nil || strings.Count(string(out), want) != 1 {
			t.Errorf("got ldconfig output %s, %v", out, err)
		}
	}
	if info, err := os.Stat(cache); err != nil || info.Mode() != 0o644 {
		t.Errorf("got mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(cache)); err != nil || len(entries) != 1 {
		t.Errorf("got files %v, %v", entries, err)
	}
}

func TestHookPreservesHardLinks(t *testing.T) {
	root, state := bundle(t)
	other := filepath.Join(filepath.Dir(root), "other")
	before := new(ldcache.Cache).Bytes()
	if err := os.WriteFile(other, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(other, filepath.Join(root, "etc/ld.so.cache")); err != nil {
		t.Fatal(err)
	}
	if err := hook([]string{library}, strings.NewReader(state)); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(other); err != nil || string(after) != string(before) {
		t.Errorf("other hard link changed to %q, %v", after, err)
	}
}

func TestHookFails(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(cache string) error
		want  []string // parts of the message
	}{
		{"symlink", func(cache string) error { return os.Symlink("/etc/ld.so.cache", cache) }, []string{"/etc/ld.so.cache", "not a regular file"}},
		{"directory", func(cache string) error { return os.Mkdir(cache, 0o755) }, []string{"/etc/ld.so.cache", "not a regular file"}},
		{"named pipe", func(cache string) error { return unix.Mkfifo(cache, 0o644) }, []string{"/etc/ld.so.cache", "not a regular file"}},
		{"malformed cache", func(cache string) error { return os.WriteFile(cache, []byte("x"), 0o600) }, []string{"/etc/ld.so.cache", "malformed"}},
		{"too large", func(cache string) error {
			return os.WriteFile(cache, make([]byte, ldcache.MaxSize+1), 0o600)
		}, []string{"/etc/ld.so.cache", "larger"}},
		{"file instead of /etc", func(cache string) error {
			dir := filepath.Dir(cache)
			if err := os.Remove(dir); err != nil {
				return err
			}
			return os.WriteFile(dir, nil, 0o600)
		}, []string{"not a directory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, state := bundle(t)
			cache := filepath.Join(root, "etc/ld.so.cache")
			if err := tc.setup(cache); err != nil {
				t.Fatal(err)
			}
			var stderr strings.Builder
			if code := run([]string{library}, strings.NewReader(state), &stderr); code != exitFailed {
				t.Errorf("got exit code %d, want %d", code, exitFailed)
			}
			for _, want := range tc.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("got %q, want it to contain %q", &stderr, want)
				}
			}
		})
	}
}

func TestHookStaysInRoot(t *testing.T) {
	root, state := bundle(t)
	outside, etc := filepath.Join(filepath.Dir(root), "outside"), filepath.Join(root, "etc")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(outside)
	for _, target := range []string{outside, "../outside", "/proc/self/cwd"} {
		if err := errors.Join(os.Remove(etc), os.Symlink(target, etc)); err != nil {
			t.Fatal(err)
		}
		if err := hook([]string{library}, strings.NewReader(state)); err != nil {
			t.Errorf("/etc is a symlink to %s: %v", target, err)
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
			t.Errorf("/etc is a symlink to %s: got files outside the root %v, %v", target, entries, err)
		}
	}
}

func TestHookRejectsInvalidInput(t *testing.T) {
	_, state := bundle(t)
	for _, tc := range []struct {
		args        []string
		state, want string
	}{
		{nil, state, "no libraries specified"},
		{[]string{"--driver-version=580", library}, "", "OCI state"},
		{[]string{"--driver-version=580"}, state, "no libraries specified"},
		{[]string{"--driver-version=new", library}, state, `"new"`},
		{[]string{"--verbose", library}, state, "-verbose"},
		{[]string{library}, "", "OCI state"},
		{[]string{library}, `{"bundle":"here"}`, `"here"`},
		{[]string{library}, `{"bundle":"/nowhere"}`, "/nowhere/config.json"},
	} {
		if err := hook(tc.args, strings.NewReader(tc.state)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q, %q: got error %v, want it to contain %q", tc.args, tc.state, err, tc.want)
		}
	}
}
