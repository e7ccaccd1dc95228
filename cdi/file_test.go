package cdi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
)

func TestPutWritesOnceAndReadsBack(t *testing.T) {
	n, spec := provableSpec(t)
	dir := filepath.Join(t.TempDir(), "made/by/put")
	file := cdi.AgentFile(dir, n.root())
	for i, want := range []bool{true, false} {
		written, err := file.Put(spec)
		if err != nil || written != want {
			t.Fatalf("Put %d: written %v, %v", i, written, err)
		}
	}
	info, err := os.Stat(file.Path)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file.Path, []byte("kind: spoiled"), 0o600); err != nil {
		t.Fatal(err)
	}
	if written, err := file.Put(spec); err != nil || !written {
		t.Errorf("a spoiled file: written %v, %v", written, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "gpucdi.dev-gpu.json" {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
}

func TestPutKeepsTheOldSpecWhenTheNewCannotBeUsed(t *testing.T) {
	n, good := provableSpec(t)
	for name, spoil := range map[string]func(s *specs.Spec){
		"a source that is missing":   func(s *specs.Spec) { s.ContainerEdits.Mounts[0].HostPath = "/nowhere/lib.so" },
		"no devices":                 func(s *specs.Spec) { s.Devices = nil },
		"a device twice":             func(s *specs.Spec) { s.Devices = append(s.Devices, s.Devices[0]) },
		"a version that is too low":  func(s *specs.Spec) { s.Version = "0.0.9" },
		"a device type that is none": func(s *specs.Spec) { s.Devices[0].ContainerEdits.DeviceNodes[0].Type = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			file := cdi.AgentFile(t.TempDir(), n.root())
			if _, err := file.Put(good); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(file.Path)
			if err != nil {
				t.Fatal(err)
			}
			_, bad := provableSpecOf(t, n)
			spoil(bad)
			if _, err := file.Put(bad); err == nil {
				t.Error("accepted")
			}
			after, err := os.ReadFile(file.Path)
			if err != nil || string(after) != string(before) {
				t.Errorf("the file is now %q, %v", after, err)
			}
		})
	}
}

func TestTouched(t *testing.T) {
	n, spec := provableSpec(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if !file.Touched() {
		t.Error("a file that was never put is untouched")
	}
	for name, touch := range map[string]func() error{
		"nobody":  nil,
		"removed": func() error { return os.Remove(file.Path) },
		"written": func() error { return os.WriteFile(file.Path, []byte("x"), 0o600) },
		"replaced": func() error {
			return errors.Join(os.WriteFile(file.Path+".other", nil, 0o600), os.Rename(file.Path+".other", file.Path))
		},
	} {
		if _, err := file.Put(spec); err != nil {
			t.Fatal(err)
		}
		if touch != nil {
			if err := touch(); err != nil {
				t.Fatal(err)
			}
		}
		if got := file.Touched(); got != (touch != nil) {
			t.Errorf("%s: touched %v", name, got)
		}
	}
}

// What takes the place of the file is replaced by it.
func TestPutReplacesWhateverHasItsName(t *testing.T) {
	n, spec := provableSpec(t)
	other := func(path string) string { return path + ".other" } // a copy
	for name, tc := range map[string]struct {
		make func(path string) error
		same bool // nothing is written
	}{
		"a named pipe":              {func(path string) error { return unix.Mkfifo(path, 0o644) }, false},
		"a device":                  {func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, false},
		"a dangling link":           {func(path string) error { return os.Symlink("nowhere", path) }, false},
		"a link to itself":          {func(path string) error { return os.Symlink(filepath.Base(path), path) }, false},
		"a link to a copy":          {func(path string) error { return os.Symlink(other(path), path) }, true},
		"a file of somebody else":   {func(path string) error { return errors.Join(os.Rename(other(path), path), os.Chown(path, 65534, 0)) }, false},
		"a file for all to write":   {func(path string) error { return errors.Join(os.Rename(other(path), path), os.Chmod(path, 0o666)) }, false},
		"a file that few may read":  {func(path string) error { return errors.Join(os.Rename(other(path), path), os.Chmod(path, 0o600)) }, false},
		"a file that nobody writes": {func(path string) error { return errors.Join(os.Rename(other(path), path), os.Chmod(path, 0o444)) }, true},
		"5 GB": {func(path string) error {
			return errors.Join(os.Rename(other(path), path), os.Truncate(path, 5<<30))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := cdi.AgentFile(t.TempDir(), n.root())
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Rename(file.Path, other(file.Path)), tc.make(file.Path)); err != nil {
				t.Fatal(err)
			}
			if !tc.same && !file.Touched() {
				t.Error("untouched")
			}
			within(t, func() {
				if written, err := file.Put(spec); err != nil || written == tc.same {
					t.Errorf("Put: written %t, %v", written, err)
				}
			})
			if err := file.Verify(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPutCannotReplaceADirectory(t *testing.T) {
	n, spec := provableSpec(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if err := os.Mkdir(file.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), file.Path) {
		t.Errorf("error %v", err)
	}
}

// A spec that cannot be inspected is an error, however the path leads to it.
func TestVerifyAndGivenDoNotBlock(t *testing.T) {
	n := newNode(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if err := unix.Mkfifo(file.Path, 0o644); err != nil {
		t.Fatal(err)
	}
	within(t, func() {
		if err := file.Verify(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("Verify: %v", err)
		}
		if _, err := file.Given(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("Given: %v", err)
		}
	})
}

// What a spec needs of the node can go without a word.
func TestTouchedSeesWhatTheSpecNeeds(t *testing.T) {
	for name, touch := range map[string]func(n node){
		"a library is removed": func(n node) { n.remove(t, libDir+"libcuda.so."+driverVersion) },
		"a node is made":       func(n node) { n.write(t, "dev/nvidia1", "") },
		"a module is unloaded": func(n node) { n.write(t, "proc/devices", "Character devices:\n195 nvidia\n") },
		"modeset is loaded":    func(n node) { n.write(t, "sys/module/nvidia_modeset/initstate", "live\n") },
		"a module is replaced": func(n node) { n.write(t, "proc/driver/nvidia/version", "NVRM version: X 1.2.3") },
	} {
		n, spec := provableSpec(t)
		file := cdi.AgentFile(t.TempDir(), n.root())
		if _, err := file.Put(spec); err != nil {
			t.Fatal(err)
		}
		if file.Touched() {
			t.Errorf("%s: touched before", name)
		}
		if touch(n); !file.Touched() {
			t.Errorf("%s: untouched", name)
		}
	}
}

func TestPutNoticesASourceThatWentAway(t *testing.T) {
	n, spec := provableSpec(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if _, err := file.Put(spec); err != nil {
		t.Fatal(err)
	}
	n.remove(t, "usr/bin/nvidia-smi")
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestWatchSeesWhateverHappensToTheSpec(t *testing.T) {
	n, spec := provableSpec(t)
	dir := filepath.Join(t.TempDir(), "cdi")
	file := cdi.AgentFile(dir, n.root())
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- file.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	// Several events may come of one step, so each step waits until the loop
	// has put the file back and nothing further happens to it.
	settle := func(step string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			select {
			case <-changed:
				if _, err := file.Put(spec); err != nil {
					t.Logf("%s: %v", step, err)
				}
			case <-time.After(100 * time.Millisecond):
				if _, err := os.Stat(file.Path); err == nil {
					return
				}
			case <-deadline:
				t.Fatalf("%s: the spec was not put back", step)
			}
		}
	}
	settle("start")
	for step, do := range map[string]func() error{
		"file removed":      func() error { return os.Remove(file.Path) },
		"directory removed": func() error { return os.RemoveAll(dir) },
		"directory moved":   func() error { return os.Rename(dir, dir+".old") },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		settle(step)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch ended with %v", err)
	}
}

// Other software writes specs by the hundred.
func TestWatchCollectsForeignChanges(t *testing.T) {
	dir := t.TempDir()
	file := cdi.AgentFile(dir, newNode(t).root())
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	called := make(chan struct{}, 1)
	done := make(chan error)
	go func() {
		done <- file.Watch(ctx, func() {
			calls.Add(1)
			select {
			case called <- struct{}{}:
			default:
			}
		})
	}()
	wait := func() {
		select {
		case <-called:
		case <-time.After(20 * time.Second):
			t.Fatal("nothing is noticed")
		}
	}
	wait()
	const count = 1000
	for i := range count {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("claim-%d.json", i)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wait()
	if got := calls.Load(); got > count/10 {
		t.Errorf("%d calls for %d files", got, count)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func provableSpec(t *testing.T) (node, *specs.Spec) {
	t.Helper()
	return provableSpecOf(t, newNode(t))
}

func provableSpecOf(t *testing.T, n node) (node, *specs.Spec) {
	t.Helper()
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.DefaultFeatures())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.Name{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	return n, spec
}

func TestPutRefusesAHookThatIsNotThere(t *testing.T) {
	n := newNode(t)
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.DefaultFeatures())
	if err != nil {
		t.Fatal(err)
	}
	parts.Hook = "/opt/gpucdi/gpucdi-hook"
	spec, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.Name{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	file := cdi.AgentFile(t.TempDir(), n.root())
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), parts.Hook) {
		t.Errorf("error %v", err)
	}
	n.write(t, parts.Hook+"/directory", "")
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), "executable") {
		t.Errorf("a directory: error %v", err)
	}
	if err := os.RemoveAll(n.path(parts.Hook)); err != nil {
		t.Fatal(err)
	}
	n.write(t, parts.Hook, "")
	if err := os.Chmod(n.path(parts.Hook), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), "executable") {
		t.Errorf("a file that nobody may execute: error %v", err)
	}
	if err := os.Chmod(n.path(parts.Hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Put(spec); err != nil {
		t.Error(err)
	}
}
