package cdi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
)

func TestPut(t *testing.T) {
	n, spec := usableSpec(t)
	dir := filepath.Join(t.TempDir(), "created/by/put")
	file := cdi.AgentFile(dir, n.root())
	for i, want := range []bool{true, false} {
		written, err := file.Put(spec)
		if err != nil || written != want {
			t.Fatalf("Put %d: got written %t, %v", i, written, err)
		}
	}
	info, err := os.Stat(file.Path)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("got mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file.Path, []byte("kind: corrupt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if written, err := file.Put(spec); err != nil || !written {
		t.Errorf("corrupt file: got written %t, %v", written, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "gpucdi.dev-gpu.json" {
		t.Errorf("got files %v, %v", entries, err)
	}
}

func TestPutKeepsOldSpecIfNewIsUnusable(t *testing.T) {
	n, good := usableSpec(t)
	for name, corrupt := range map[string]func(s *specs.Spec){
		"missing mount source": func(s *specs.Spec) { s.ContainerEdits.Mounts[0].HostPath = "/nowhere/lib.so" },
		"no devices":           func(s *specs.Spec) { s.Devices = nil },
		"duplicate device":     func(s *specs.Spec) { s.Devices = append(s.Devices, s.Devices[0]) },
		"unsupported version":  func(s *specs.Spec) { s.Version = "0.0.9" },
		"invalid device type":  func(s *specs.Spec) { s.Devices[0].ContainerEdits.DeviceNodes[0].Type = "x" },
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
			_, bad := usableSpecOf(t, n)
			corrupt(bad)
			if _, err := file.Put(bad); err == nil {
				t.Error("accepted an unusable spec")
			}
			after, err := os.ReadFile(file.Path)
			if err != nil || string(after) != string(before) {
				t.Errorf("file changed to %q, %v", after, err)
			}
		})
	}
}

func TestStale(t *testing.T) {
	n, spec := usableSpec(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if !file.Stale() {
		t.Error("not stale before Put")
	}
	for name, change := range map[string]func() error{
		"unchanged": nil,
		"removed":   func() error { return os.Remove(file.Path) },
		"written":   func() error { return os.WriteFile(file.Path, []byte("x"), 0o600) },
		"replaced": func() error {
			return errors.Join(os.WriteFile(file.Path+".other", nil, 0o600), os.Rename(file.Path+".other", file.Path))
		},
	} {
		if _, err := file.Put(spec); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			if err := change(); err != nil {
				t.Fatal(err)
			}
		}
		if got := file.Stale(); got != (change != nil) {
			t.Errorf("%s: got stale %t", name, got)
		}
	}
}

func TestPutReplacesOtherFiles(t *testing.T) {
	n, spec := usableSpec(t)
	backup := func(path string) string { return path + ".backup" }
	for name, tc := range map[string]struct {
		make func(path string) error
		keep bool // the file is not rewritten
	}{
		"named pipe":            {func(path string) error { return unix.Mkfifo(path, 0o644) }, false},
		"device":                {func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, false},
		"dangling symlink":      {func(path string) error { return os.Symlink("nowhere", path) }, false},
		"symlink to itself":     {func(path string) error { return os.Symlink(filepath.Base(path), path) }, false},
		"symlink to a copy":     {func(path string) error { return os.Symlink(backup(path), path) }, true},
		"owned by another user": {func(path string) error { return errors.Join(os.Rename(backup(path), path), os.Chown(path, 65534, 0)) }, false},
		"world-writable":        {func(path string) error { return errors.Join(os.Rename(backup(path), path), os.Chmod(path, 0o666)) }, false},
		"not world-readable":    {func(path string) error { return errors.Join(os.Rename(backup(path), path), os.Chmod(path, 0o600)) }, false},
		"read-only":             {func(path string) error { return errors.Join(os.Rename(backup(path), path), os.Chmod(path, 0o444)) }, true},
		"5 GiB": {func(path string) error {
			return errors.Join(os.Rename(backup(path), path), os.Truncate(path, 5<<30))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := cdi.AgentFile(t.TempDir(), n.root())
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Rename(file.Path, backup(file.Path)), tc.make(file.Path)); err != nil {
				t.Fatal(err)
			}
			if !tc.keep && !file.Stale() {
				t.Error("not stale")
			}
			within(t, func() {
				if written, err := file.Put(spec); err != nil || written == tc.keep {
					t.Errorf("Put: got written %t, %v", written, err)
				}
			})
			if err := file.Verify(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPutFailsOnDirectory(t *testing.T) {
	n, spec := usableSpec(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if err := os.Mkdir(file.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), file.Path) {
		t.Errorf("got error %v", err)
	}
}

func TestVerifyAndDeviceEditsDoNotBlockOnPipe(t *testing.T) {
	n := newNode(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if err := unix.Mkfifo(file.Path, 0o644); err != nil {
		t.Fatal(err)
	}
	within(t, func() {
		if err := file.Verify(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("Verify: %v", err)
		}
		if _, err := file.DeviceEdits(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("DeviceEdits: %v", err)
		}
	})
}

// Watch does not report changes of dependencies; only Stale detects them.
func TestStaleAfterDependencyChanged(t *testing.T) {
	chown := func(n node, name string, uid, gid int) {
		if err := os.Chown(n.path(name), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(n node){
		"library removed":        func(n node) { n.remove(t, libDir+"libcuda.so."+driverVersion) },
		"device node created":    func(n node) { n.write(t, "dev/nvidia1", "") },
		"module unloaded":        func(n node) { n.write(t, "proc/devices", "Character devices:\n195 nvidia\n") },
		"modeset loaded":         func(n node) { n.write(t, "sys/module/nvidia_modeset/initstate", "live\n") },
		"module replaced":        func(n node) { n.write(t, "proc/driver/nvidia/version", "NVRM version: X 1.2.3") },
		"device owner changed":   func(n node) { chown(n, "dev/nvidia0", 65534, 0) },
		"device group changed":   func(n node) { chown(n, "dev/nvidia0", 0, 65534) },
		"optional library added": func(n node) { n.write(t, libDir+"libnvidia-encode.so."+driverVersion, "") },
		"optional program added": func(n node) { n.write(t, "usr/bin/nvidia-cuda-mps-control", "") },
		"DRM node added":         func(n node) { n.write(t, "dev/dri/card1", "") },
		"program group changed":  func(n node) { chown(n, "usr/bin/nvidia-smi", 0, 65534) },
		"library rewritten, mtime kept": func(n node) {
			library := n.path(libDir + "libcuda.so." + driverVersion)
			info, err := os.Stat(library)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(library)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.WriteFile(library, data, 0o600), os.Chtimes(library, info.ModTime(), info.ModTime())); err != nil {
				t.Fatal(err)
			}
		},
	} {
		n, spec := usableSpec(t)
		n.device(t, "dev/nvidia0", 195, 0)
		file := cdi.AgentFile(t.TempDir(), n.root())
		for round := range 2 {
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			if file.Stale() || file.Changed() != (round == 0) {
				t.Errorf("%s: stale %t, changed %t after Put %d", name, file.Stale(), file.Changed(), round)
			}
		}
		if change(n); !file.Stale() {
			t.Errorf("%s: not stale", name)
		}
		if _, err := file.Put(spec); !file.Changed() {
			t.Errorf("%s: not changed, error %v", name, err)
		}
	}
}

func TestPutDetectsRemovedMountSource(t *testing.T) {
	n, spec := usableSpec(t)
	file := cdi.AgentFile(t.TempDir(), n.root())
	if _, err := file.Put(spec); err != nil {
		t.Fatal(err)
	}
	n.remove(t, "usr/bin/nvidia-smi")
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("got error %v, want one with the path", err)
	}
}

// watch starts Watch, which signals changes, and returns a function that ends it and checks its result.
func watch(t *testing.T, file *cdi.File) (changed <-chan struct{}, stop func()) {
	t.Helper()
	signals := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- file.Watch(ctx, func() {
			select {
			case signals <- struct{}{}:
			default:
			}
		})
	}()
	return signals, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	}
}

func TestWatchReportsChanges(t *testing.T) {
	n, spec := usableSpec(t)
	dir := filepath.Join(t.TempDir(), "cdi")
	file := cdi.AgentFile(dir, n.root())
	changed, stop := watch(t, file)
	// One change may cause several events. Each step waits until the file is restored and no further events arrive.
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
				t.Fatalf("%s: timed out waiting for the spec to be restored", step)
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
	stop()
}

// While a process has the directory open, its removal causes no event of the directory itself.
func TestWatchReportsRemovalOfOpenDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	file := cdi.AgentFile(dir, newNode(t).root())
	changed, stop := watch(t, file)
	wait := func(change string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("no call after: %s", change)
		}
	}
	wait("start")
	for range 3 {
		open, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		wait("removal")
	}
	stop()
}

// Some tools write hundreds of specs.
func TestWatchDebouncesForeignChanges(t *testing.T) {
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
			t.Fatal("timed out waiting for a call")
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
		t.Errorf("got %d calls for %d files", got, count)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func usableSpec(t *testing.T) (node, *specs.Spec) {
	t.Helper()
	return usableSpecOf(t, newNode(t))
}

func usableSpecOf(t *testing.T, n node) (node, *specs.Spec) {
	t.Helper()
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	return n, spec
}

func TestPutRejectsUnusableHook(t *testing.T) {
	n := newNode(t)
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	parts.Hook = "/opt/gpucdi/gpucdi-hook"
	spec, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	file := cdi.AgentFile(t.TempDir(), n.root())
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), parts.Hook) {
		t.Errorf("got error %v", err)
	}
	n.write(t, parts.Hook+"/directory", "")
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), "executable") {
		t.Errorf("directory: got error %v", err)
	}
	if err := os.RemoveAll(n.path(parts.Hook)); err != nil {
		t.Fatal(err)
	}
	n.write(t, parts.Hook, "")
	if err := os.Chmod(n.path(parts.Hook), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), "executable") {
		t.Errorf("not executable: got error %v", err)
	}
	if err := os.Chmod(n.path(parts.Hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Put(spec); err != nil {
		t.Error(err)
	}
}

// A host file that disappears as soon as the spec is on disk makes the file stale.
func TestStaleAfterChangeDuringPut(t *testing.T) {
	n, spec := usableSpec(t)
	library := "/" + libDir + "libcuda.so." + driverVersion
	for range 100 {
		n.library(t, path.Base(library), "libcuda.so.1")
		file := cdi.AgentFile(t.TempDir(), n.root())
		removed := make(chan error)
		go func() {
			for {
				if _, err := os.Stat(file.Path); err == nil {
					removed <- os.Remove(n.path(library))
					return
				}
			}
		}()
		_, err := file.Put(spec)
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
		if err == nil && !file.Stale() {
			t.Fatal("the spec mounts a file that is missing, and is not stale")
		}
	}
}
