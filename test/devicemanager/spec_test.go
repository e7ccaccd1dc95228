package devicemanager

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// specFaults are faults of the CDI directory and its files.
func specFaults() []fault {
	foreign := func(n *node) string { return filepath.Join(n.cdiDir, "foreign.yaml") }
	mount := func(options string, flags uintptr) func(*node, string) error {
		return func(n *node, _ string) error { return unix.Mount("tmpfs", n.cdiDir, "tmpfs", flags, options) }
	}
	unmount := func(n *node, _ string) error { return unix.Unmount(n.cdiDir, unix.MNT_DETACH) }
	return []fault{
		{
			name: "the CDI directory is wiped",
			// The rename is atomic: the agent cannot write into the directory while it is removed.
			inject: func(n *node, _ string) error {
				return errors.Join(os.Rename(n.cdiDir, n.cdiDir+".old"), os.RemoveAll(n.cdiDir+".old"))
			},
			healthy: 8, capacity: 8,
		},
		{
			name:    "the CDI spec is corrupted",
			inject:  func(n *node, _ string) error { return os.WriteFile(n.spec(), []byte("kind: x"), 0o644) },
			healthy: 8, capacity: 8,
		},
		{
			name: "a conflicting CDI spec is added",
			inject: func(n *node, _ string) error {
				ours, err := os.ReadFile(n.spec())
				return errors.Join(err, os.WriteFile(foreign(n), ours, 0o644))
			},
			restore: func(n *node, _ string) error {
				foreignNow, err := os.ReadFile(foreign(n))
				ours, errOurs := os.ReadFile(n.spec())
				if !bytes.Equal(foreignNow, ours) {
					err = errors.Join(err, errors.New("the foreign file was changed"))
				}
				return errors.Join(err, errOurs, os.Remove(foreign(n)))
			},
			healthy: 0, capacity: 8,
		},
		{
			name:    "the CDI directory cannot be written",
			inject:  mount("", unix.MS_RDONLY),
			restore: unmount,
			healthy: 0, capacity: 8,
		},
		{
			name: "the CDI directory is full",
			inject: func(n *node, gpu string) error {
				if err := mount("size=16k", 0)(n, gpu); err != nil {
					return err
				}
				err := os.WriteFile(filepath.Join(n.cdiDir, "filler"), make([]byte, 1<<20), 0o644)
				if !errors.Is(err, unix.ENOSPC) {
					return errors.Join(errors.New("the directory is not full"), err)
				}
				return nil
			},
			restore: unmount,
			healthy: 0, capacity: 8,
		},
	}
}

// spec returns the path of the agent's CDI spec.
func (n *node) spec() string { return filepath.Join(n.cdiDir, "gpucdi.dev-gpu.json") }

func TestSpecFaults(t *testing.T) {
	t.Parallel()
	testFaults(t, specFaults())
}

// cdi.features selects the driver files in the spec. If the driver lacks a selected feature, all GPUs are unhealthy.
func TestFeatures(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.configure(t, "cdi: {features: [graphics]}")
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	specHas := func(part string) bool {
		spec, err := os.ReadFile(n.spec())
		return err == nil && strings.Contains(string(spec), part)
	}
	if !specHas("libEGL_nvidia") || !specHas("/dev/dri/card") || specHas("libcuda") {
		t.Errorf("features [graphics]: got specs %v", n.specs(t))
	}
	n.configure(t)
	for start := time.Now(); specHas("libEGL_nvidia") || !specHas("libcuda"); time.Sleep(time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatalf("default features: got specs %v", n.specs(t))
		}
	}
	decoder, err := filepath.Glob(filepath.Join(n.root, simdriver.LibraryDir, "libnvcuvid.so.*.*"))
	if err != nil || len(decoder) != 1 {
		t.Fatal(decoder, err)
	}
	if err := os.Rename(decoder[0], decoder[0]+".away"); err != nil {
		t.Fatal(err)
	}
	// Video is a default feature that the driver may lack.
	n.awaitSpec(t, func(spec string) bool { return !strings.Contains(spec, "libnvcuvid") })
	k.awaitGPUs(t, 8, 8)
	n.configure(t, "cdi: {features: [compute, video]}")
	k.awaitGPUs(t, 8, 0)
	n.configure(t)
	k.awaitGPUs(t, 8, 8)
	if err := os.Rename(decoder[0]+".away", decoder[0]); err != nil {
		t.Fatal(err)
	}
	n.awaitSpec(t, func(spec string) bool { return strings.Contains(spec, "libnvcuvid") })
	k.awaitGPUs(t, 8, 8)
}

// awaitSpec waits until the agent's spec meets a condition.
func (n *node) awaitSpec(t *testing.T, condition func(spec string) bool) {
	t.Helper()
	for start := time.Now(); !condition(n.specs(t)[n.spec()]); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatalf("got specs %v", n.specs(t))
		}
	}
}

// GPUs are unhealthy while the configured hook is missing, because containers of some images would not find the driver
// libraries without it.
func TestHook(t *testing.T) {
	t.Parallel()
	const hook = "/opt/gpucdi/gpucdi-hook"
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.configure(t, "cdi: {hook: "+hook+"}")
	n.startAgent(t)
	k.awaitGPUs(t, 8, 0)
	file := filepath.Join(n.root, hook)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 8)
	if spec, err := os.ReadFile(n.spec()); err != nil || !strings.Contains(string(spec), hook) {
		t.Errorf("the spec lacks the hook: %s, %v", spec, err)
	}
}
