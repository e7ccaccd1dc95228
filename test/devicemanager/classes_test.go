package devicemanager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Devices of other classes come with GPUs as soon as the node has them, and go
// when it has them no more; the GPUs stay.
func TestClassesGoWithGPUs(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "cdi: {classes: [gdrcopy, imex-channel]}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	n.givenBesides(t, k)

	gdrcopy, channels := filepath.Join(n.root, "dev/gdrdrv"), filepath.Join(n.root, "dev/nvidia-caps-imex-channels")
	if err := errors.Join(
		unix.Mknod(gdrcopy, unix.S_IFCHR|0o666, int(unix.Mkdev(238, 0))),
		os.MkdirAll(channels, 0o755),
		unix.Mknod(channels+"/channel0", unix.S_IFCHR|0o666, int(unix.Mkdev(233, 0))),
		unix.Mknod(channels+"/channel1", unix.S_IFCHR|0o666, int(unix.Mkdev(233, 1))),
	); err != nil {
		t.Fatal(err)
	}
	nodes := n.givenBesides(t, k, "gpucdi.dev/gdrcopy=all", "gpucdi.dev/imex-channel=0")
	if want := []string{"/dev/gdrdrv", "/dev/nvidia-caps-imex-channels/channel0"}; !slices.Equal(nodes, want) {
		t.Errorf("the container gets the nodes %v, want %v", nodes, want)
	}

	if err := os.Remove(gdrcopy); err != nil {
		t.Fatal(err)
	}
	n.givenBesides(t, k, "gpucdi.dev/imex-channel=0")
	k.counts(t, 8, 8)
	n.configure(t)
	n.givenBesides(t, k)
}

// Whatever is wrong with devices of another class, GPUs stay healthy and go without them.
func TestAClassThatCannotBeGivenAffectsNoGPU(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "cdi: {classes: [gdrcopy, gds]}")
	node := filepath.Join(n.root, "dev/gdrdrv")
	storage := filepath.Join(n.root, "dev/nvidia-fs0")
	device := func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(238, 0))) }
	if err := errors.Join(device(node), device(storage)); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	n.givenBesides(t, k, "gpucdi.dev/gdrcopy=all", "gpucdi.dev/gds=all")

	// A node that is none, a spec that cannot be written, and a conflicting one.
	spec := filepath.Join(n.cdiDir, "gpucdi.dev-gdrcopy.json")
	for name, fault := range map[string]struct{ happen, end func() error }{
		"no device": {
			func() error { return errors.Join(os.Remove(node), os.WriteFile(node, nil, 0o666)) },
			func() error { return errors.Join(os.Remove(node), device(node)) },
		},
		"a directory": {
			func() error { return errors.Join(os.Remove(spec), os.MkdirAll(filepath.Join(spec, "x"), 0o755)) },
			func() error { return os.RemoveAll(spec) },
		},
		"a conflict": {
			func() error {
				content, err := os.ReadFile(spec)
				return errors.Join(err, os.WriteFile(filepath.Join(n.cdiDir, ".foreign.json"), content, 0o644))
			},
			func() error { return os.Remove(filepath.Join(n.cdiDir, ".foreign.json")) },
		},
	} {
		t.Log(name)
		if err := fault.happen(); err != nil {
			t.Fatal(err)
		}
		n.givenBesides(t, k, "gpucdi.dev/gds=all")
		k.counts(t, 8, 8)
		if err := fault.end(); err != nil {
			t.Fatal(err)
		}
		n.givenBesides(t, k, "gpucdi.dev/gdrcopy=all", "gpucdi.dev/gds=all")
	}
	n.stopAgent(t)
	said := n.said.String()
	if strings.Contains(said, "unhealthy") {
		t.Errorf("GPUs were unhealthy:\n%s", said)
	}
	if times := strings.Count(said, "class=gdrcopy"); times != 3 {
		t.Errorf("the reasons were reported %d times, want once each:\n%s", times, said)
	}
}

// givenBesides waits until a pod with two GPUs gets these CDI names besides
// theirs, in both ways, and returns the nodes that they lead to.
func (n *node) givenBesides(t *testing.T, k *kubelet, want ...string) []string {
	t.Helper()
	for start, i := time.Now(), 0; ; i++ {
		pod := newPod(fmt.Sprintf("%s-%d-%d", t.Name(), len(want), start.UnixNano()+int64(i)), 2)
		if err := k.admit(pod); err != nil {
			t.Fatal(err)
		}
		r, err := k.start(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		k.forget(pod)
		_, annotated, err := cdi.ParseAnnotations(r.annotations)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(annotated)
		slices.Sort(r.cdiDevices)
		if !slices.Equal(annotated, r.cdiDevices) {
			t.Fatalf("by field the container gets %v, by annotation %v", r.cdiDevices, annotated)
		}
		if others := slices.DeleteFunc(slices.Clone(annotated), isGPU); slices.Equal(others, want) {
			return n.otherNodes(t, annotated)
		} else if time.Since(start) > patience {
			t.Fatalf("besides GPUs the container gets %v, want %v", others, want)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func isGPU(name string) bool { return strings.HasPrefix(name, "gpucdi.dev/gpu=") }

// otherNodes are the nodes that a runtime gives for those names, less the
// driver's.
func (n *node) otherNodes(t *testing.T, names []string) (nodes []string) {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{}
	if unresolved, err := cache.InjectDevices(spec, names...); err != nil {
		t.Fatalf("the runtime cannot resolve %v: %v", unresolved, err)
	}
	for _, d := range spec.Linux.Devices {
		if rest, driver := strings.CutPrefix(d.Path, "/dev/nvidia"); !driver || strings.HasPrefix(rest, "-caps-imex") {
			nodes = append(nodes, d.Path)
		}
	}
	return nodes
}
