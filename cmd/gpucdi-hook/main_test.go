package main

import (
	"encoding/json"
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

// bundle is a container that a runtime makes, and the hook's input for it.
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

func TestHookMakesACache(t *testing.T) {
	root, state := bundle(t)
	cache := filepath.Join(root, "etc/ld.so.cache")
	for range 2 { // the second time there is one
		if err := hook([]string{library}, strings.NewReader(state)); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("/sbin/ldconfig", "-p", "-C", cache).Output()
		if want := "\tlibcuda.so.1 (libc6,x86-64) => " + library + "\n"; err != nil || strings.Count(string(out), want) != 1 {
			t.Errorf("ldconfig prints %s, %v", out, err)
		}
	}
	if info, err := os.Stat(cache); err != nil || info.Mode() != 0o644 {
		t.Errorf("the cache has mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(cache)); err != nil || len(entries) != 1 {
		t.Errorf("it leaves %v, %v", entries, err)
	}
}

func TestHookLeavesOtherNamesOfTheCacheAlone(t *testing.T) {
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
		t.Errorf("the other name has %q, %v", after, err)
	}
}

func TestHookRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(cache string) error
		says []string
	}{
		{"a link", func(cache string) error { return os.Symlink("/etc/ld.so.cache", cache) }, []string{"/etc/ld.so.cache", "no regular file"}},
		{"a directory", func(cache string) error { return os.Mkdir(cache, 0o755) }, []string{"/etc/ld.so.cache", "no regular file"}},
		{"a pipe", func(cache string) error { return unix.Mkfifo(cache, 0o644) }, []string{"/etc/ld.so.cache", "no regular file"}},
		{"what is no cache", func(cache string) error { return os.WriteFile(cache, []byte("x"), 0o600) }, []string{"/etc/ld.so.cache", "malformed"}},
		{"what is too large", func(cache string) error {
			return os.WriteFile(cache, make([]byte, ldcache.MaxSize+1), 0o600)
		}, []string{"/etc/ld.so.cache", "larger"}},
		{"an /etc that is a file", func(cache string) error {
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
			if err := tc.make(cache); err != nil {
				t.Fatal(err)
			}
			var stderr strings.Builder
			if code := run([]string{library}, strings.NewReader(state), &stderr); code != exitFailed {
				t.Errorf("exit code %d", code)
			}
			for _, says := range tc.says {
				if !strings.Contains(stderr.String(), says) {
					t.Errorf("%q is not in %s", says, &stderr)
				}
			}
		})
	}
}

func TestHookKeepsToTheRoot(t *testing.T) {
	for _, target := range []string{"/outside", "../../outside", "/proc/self/cwd"} {
		root, state := bundle(t)
		outside := filepath.Join(filepath.Dir(root), "outside")
		if err := os.Mkdir(outside, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Chdir(outside)
		if err := os.Remove(filepath.Join(root, "etc")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, "etc")); err != nil {
			t.Fatal(err)
		}
		if err := hook([]string{library}, strings.NewReader(state)); err != nil {
			t.Errorf("with an /etc that leads to no directory: %v", err)
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
			t.Errorf("/etc is a link to %s, and the hook leaves %v, %v", target, entries, err)
		}
	}
}

func TestHookExplainsItsInput(t *testing.T) {
	_, state := bundle(t)
	for _, tc := range []struct {
		args        []string
		state, says string
	}{
		{nil, state, "no libraries"},
		{[]string{"--driver-version=580", library}, "", "OCI state"},
		{[]string{"--driver-version=580"}, state, "no libraries"},
		{[]string{"--driver-version=new", library}, state, `"new"`},
		{[]string{"--verbose", library}, state, "-verbose"},
		{[]string{library}, "", "OCI state"},
		{[]string{library}, `{"bundle":"here"}`, `"here"`},
		{[]string{library}, `{"bundle":"/nowhere"}`, "/nowhere/config.json"},
	} {
		if err := hook(tc.args, strings.NewReader(tc.state)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q, %q: %v", tc.args, tc.state, err)
		}
	}
}
