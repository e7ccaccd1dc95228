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

// specFaults are what can go wrong with the directory of the CDI specs.
func specFaults() []fault {
	foreign := func(n *node) string { return filepath.Join(n.cdiDir, "foreign.yaml") }
	mount := func(options string, flags uintptr) func(*node, string) error {
		return func(n *node, _ string) error { return unix.Mount("tmpfs", n.cdiDir, "tmpfs", flags, options) }
	}
	unmount := func(n *node, _ string) error { return unix.Unmount(n.cdiDir, unix.MNT_DETACH) }
	return []fault{
		{
			name: "the CDI directory is wiped",
			// At once, or the agent would write into it meanwhile.
			happen: func(n *node, _ string) error {
				return errors.Join(os.Rename(n.cdiDir, n.cdiDir+".old"), os.RemoveAll(n.cdiDir+".old"))
			},
			healthy: 8, capacity: 8,
		},
		{
			name:    "the CDI spec is corrupted",
			happen:  func(n *node, _ string) error { return os.WriteFile(n.spec(), []byte("kind: x"), 0o644) },
			healthy: 8, capacity: 8,
		},
		{
			name: "a foreign CDI spec defines the same devices",
			happen: func(n *node, _ string) error {
				ours, err := os.ReadFile(n.spec())
				return errors.Join(err, os.WriteFile(foreign(n), ours, 0o644))
			},
			end: func(n *node, _ string) error {
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
			happen:  mount("", unix.MS_RDONLY),
			end:     unmount,
			healthy: 0, capacity: 8,
		},
		{
			name: "the CDI directory is full",
			happen: func(n *node, gpu string) error {
				if err := mount("size=16k", 0)(n, gpu); err != nil {
					return err
				}
				err := os.WriteFile(filepath.Join(n.cdiDir, "filler"), make([]byte, 1<<20), 0o644)
				if !errors.Is(err, unix.ENOSPC) {
					return errors.Join(errors.New("the directory is not full"), err)
				}
				return nil
			},
			end:     unmount,
			healthy: 0, capacity: 8,
		},
	}
}

// spec is the agent's own CDI spec.
func (n *node) spec() string { return filepath.Join(n.cdiDir, "gpucdi.dev-gpu.json") }

func TestSpecFaults(t *testing.T) { letHappen(t, specFaults()) }

// The features of the config decide what is in the spec, and a driver without
// one of them gives no GPU.
func TestFeatures(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.configure(t, "cdi: {features: [graphics]}")
	n.startAgent(t)
	k.counts(t, 8, 8)
	holds := func(part string) bool {
		spec, err := os.ReadFile(n.spec())
		return err == nil && strings.Contains(string(spec), part)
	}
	if !holds("libEGL_nvidia") || !holds("/dev/dri/card") || holds("libcuda") {
		t.Errorf("with graphics the spec is %v", n.specs(t))
	}
	n.configure(t)
	for start := time.Now(); holds("libEGL_nvidia") || !holds("libcuda"); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("with the default features the spec is %v", n.specs(t))
		}
	}
	decoder, err := filepath.Glob(filepath.Join(n.root, simdriver.LibraryDir, "libnvcuvid.so.*.*"))
	if err != nil || len(decoder) != 1 {
		t.Fatal(decoder, err)
	}
	if err := os.Rename(decoder[0], decoder[0]+".away"); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "cdi: {features: [compute, video]}")
	k.counts(t, 8, 0)
	if err := os.Rename(decoder[0]+".away", decoder[0]); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 8)
}

// Pods that started without the hook that the config asks for would not find
// their GPUs, in some images.
func TestHook(t *testing.T) {
	const hook = "/opt/gpucdi/gpucdi-hook"
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.configure(t, "cdi: {hook: "+hook+"}")
	n.startAgent(t)
	k.counts(t, 8, 0)
	file := filepath.Join(n.root, hook)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 8)
	if spec, err := os.ReadFile(n.spec()); err != nil || !strings.Contains(string(spec), hook) {
		t.Errorf("the spec is %s, %v", spec, err)
	}
}
