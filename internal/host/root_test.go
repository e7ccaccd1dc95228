package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestRootResolvesLinksWithinRoot(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "usr/lib/libcuda.so.1.2"), "inside")
	for link, target := range map[string]string{
		"lib":                   "usr/lib",
		"usr/lib/absolute.so":   "/usr/lib/libcuda.so.1.2",
		"usr/lib/climbing.so":   "../../../../../../usr/lib/libcuda.so.1.2",
		"usr/lib/loop":          "loop",
		"usr/lib/through-loop":  "loop/x",
		"usr/lib/outside":       "/etc/passwd",
		"usr/lib/chain-of-two":  "/lib/absolute.so",
		"usr/lib/missing-piece": "/nowhere/at/all",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	root := host.NewRoot(dir)

	for _, name := range []string{"absolute.so", "climbing.so", "chain-of-two"} {
		got, err := root.Resolve("/lib/" + name)
		if err != nil || got != "/usr/lib/libcuda.so.1.2" {
			t.Errorf("Resolve(%s) = %q, %v", name, got, err)
		}
		data, err := root.ReadFile("/lib/" + name)
		if err != nil || string(data) != "inside" {
			t.Errorf("ReadFile(%s) = %q, %v", name, data, err)
		}
	}
	for _, name := range []string{"loop", "through-loop"} {
		if got, err := root.Resolve("/lib/" + name); err == nil {
			t.Errorf("Resolve(%s) = %q, want an error", name, got)
		}
	}
	for _, name := range []string{"outside", "missing-piece"} {
		if _, err := root.Stat("/lib/" + name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Stat(%s) = %v, want not found", name, err)
		}
	}
}

func TestSub(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "run/nvidia/driver/usr/lib/x"), "x")
	sub, err := host.NewRoot(dir).Sub("/run/nvidia/driver")
	if err != nil {
		t.Fatal(err)
	}
	if got := sub.NodePath("/usr/lib/x"); got != "/run/nvidia/driver/usr/lib/x" {
		t.Errorf("NodePath = %s", got)
	}
	if got := sub.LocalPath("/usr/lib/x"); got != filepath.Join(dir, "run/nvidia/driver/usr/lib/x") {
		t.Errorf("LocalPath = %s", got)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzResolve accesses any name in a root that contains a symlink with any target.
func FuzzResolve(f *testing.F) {
	for _, seed := range [][2]string{
		{"/outside/secret", "link"}, {"../../outside/secret", "link"}, {"..", "link/outside/secret"}, {"/", "link/../../outside/secret"},
		{"", "a/absolute"}, {"link", "link"}, {"a/../link", "link/x"}, {"", "../outside/secret"}, {"/proc/self/cwd", "link/secret"}, {"x\x00y", "link"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, target, name string) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "outside/secret"), "secret")
		write(t, filepath.Join(dir, "root/a/file"), "inside")
		rootDir := filepath.Join(dir, "root")
		_ = os.Symlink(target, filepath.Join(rootDir, "link")) // ignore invalid targets
		_ = os.Symlink(filepath.Join(dir, "outside/secret"), filepath.Join(rootDir, "a/absolute"))

		root := host.NewRoot(rootDir)
		if inside, err := root.Resolve(name); err == nil {
			local := root.LocalPath(inside)
			if actual, err := filepath.EvalSymlinks(local); err == nil && actual != local || local != rootDir && !strings.HasPrefix(local, rootDir+"/") {
				t.Errorf("Resolve(%q) = %q, which leads to %s", name, inside, actual)
			}
		}
		if data, err := root.ReadFile(name); err == nil && string(data) != "inside" {
			t.Errorf("ReadFile(%q) = %q", name, data)
		}
		entries, err := root.ReadDir(name)
		for _, entry := range entries {
			if err == nil && entry.Name() == "secret" {
				t.Errorf("ReadDir(%q) lists a directory outside of the root", name)
			}
		}
	})
}

// Opening a named pipe without a writer blocks, and opening a device can have side effects.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/pipe", "/"} {
		if _, err := host.NewRoot(dir).ReadFile(name); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("ReadFile(%s) = %v", name, err)
		}
	}
}

func TestGlob(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"d/b.json", "d/a.json", "d/c.txt", "d/dir.json/x"} {
		write(t, filepath.Join(dir, name), "")
	}
	for link, target := range map[string]string{"d/l.json": "/d/c.txt", "d/dangling.json": "nowhere", "d/loop": "loop", "e": "/d"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	root := host.NewRoot(dir)
	for pattern, want := range map[string]string{
		"/d/*.json": "/d/a.json /d/b.json /d/l.json", "/e/a.*": "/e/a.json", "/nowhere/*": "", "/d/a.json/*": "",
		"/d/c.txt": "/d/c.txt", "/e//a.json": "/e/a.json", "/d/l.json": "/d/l.json",
		"/d/nowhere": "", "/nowhere/a.json": "", "/d/a.json/b": "", "/d/dangling.json": "", "/d/loop": "", "/d/dir.json": "", "/d/": "",
	} {
		got, err := root.Glob(pattern)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("Glob(%s) = %v, %v, want %s", pattern, got, err, want)
		}
	}
	if _, err := root.Glob("/d/["); err == nil {
		t.Error("an invalid pattern was accepted")
	}
}
