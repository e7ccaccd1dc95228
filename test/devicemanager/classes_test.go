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

// Containers with GPUs get the devices of the classes in cdi.classes that the node has. The appearance and removal of
// these devices do not affect GPUs.
func TestClassDevices(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "cdi: {classes: [gdrcopy, imex-channel]}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.awaitClassDevices(t, k)

	gdrcopy, channels := filepath.Join(n.root, "dev/gdrdrv"), filepath.Join(n.root, "dev/nvidia-caps-imex-channels")
	if err := errors.Join(
		unix.Mknod(gdrcopy, unix.S_IFCHR|0o666, int(unix.Mkdev(238, 0))),
		os.MkdirAll(channels, 0o755),
		unix.Mknod(channels+"/channel1", unix.S_IFCHR|0o666, int(unix.Mkdev(233, 1))),
	); err != nil {
		t.Fatal(err)
	}
	n.awaitClassDevices(t, k, "gpucdi.dev/gdrcopy=all") // and imex-channel has a spec, without the channel that containers get
	if err := unix.Mknod(channels+"/channel0", unix.S_IFCHR|0o666, int(unix.Mkdev(233, 0))); err != nil {
		t.Fatal(err)
	}
	// With imex-channel, containers get the first channel only.
	nodes := n.awaitClassDevices(t, k, "gpucdi.dev/gdrcopy=all", "gpucdi.dev/imex-channel=0")
	if want := []string{"/dev/gdrdrv", "/dev/nvidia-caps-imex-channels/channel0"}; !slices.Equal(nodes, want) {
		t.Errorf("got device nodes %v, want %v", nodes, want)
	}

	if err := os.Remove(gdrcopy); err != nil {
		t.Fatal(err)
	}
	n.awaitClassDevices(t, k, "gpucdi.dev/imex-channel=0")
	k.awaitGPUs(t, 8, 8)
	if err := os.Remove(channels + "/channel0"); err != nil {
		t.Fatal(err)
	}
	n.awaitClassDevices(t, k) // without channel0, which is no longer in a spec
	n.configure(t)
	n.awaitClassDevices(t, k)
}

// If the devices of a class are broken, GPUs stay healthy and are allocated without them.
func TestBrokenClassDoesNotAffectGPUs(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "cdi: {classes: [gdrcopy, gds]}", patient)
	gdrcopy := filepath.Join(n.root, "dev/gdrdrv")
	gds := filepath.Join(n.root, "dev/nvidia-fs0")
	device := func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(238, 0))) }
	if err := errors.Join(device(gdrcopy), device(gds)); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.awaitClassDevices(t, k, "gpucdi.dev/gdrcopy=all", "gpucdi.dev/gds=all")

	spec := filepath.Join(n.cdiDir, "gpucdi.dev-gdrcopy.json")
	for name, fault := range map[string]struct{ inject, restore func() error }{
		"device node is a regular file": {
			func() error { return errors.Join(os.Remove(gdrcopy), os.WriteFile(gdrcopy, nil, 0o666)) },
			func() error { return errors.Join(os.Remove(gdrcopy), device(gdrcopy)) },
		},
		"spec cannot be written": {
			func() error { return errors.Join(os.Remove(spec), os.MkdirAll(filepath.Join(spec, "x"), 0o755)) },
			func() error { return os.RemoveAll(spec) },
		},
		"conflicting spec": {
			func() error {
				content, err := os.ReadFile(spec)
				return errors.Join(err, os.WriteFile(filepath.Join(n.cdiDir, ".foreign.json"), content, 0o644))
			},
			func() error { return os.Remove(filepath.Join(n.cdiDir, ".foreign.json")) },
		},
	} {
		t.Log(name)
		if err := fault.inject(); err != nil {
			t.Fatal(err)
		}
		n.awaitClassDevices(t, k, "gpucdi.dev/gds=all")
		k.awaitGPUs(t, 8, 8)
		if err := fault.restore(); err != nil {
			t.Fatal(err)
		}
		n.awaitClassDevices(t, k, "gpucdi.dev/gdrcopy=all", "gpucdi.dev/gds=all")
	}
	n.stopAgent(t)
	logs := n.logs.String()
	if strings.Contains(logs, "unhealthy") {
		t.Errorf("GPUs were unhealthy:\n%s", logs)
	}
	if count := strings.Count(logs, "class=gdrcopy"); count != 3 {
		t.Errorf("got %d log lines about the class, want one for each of 3 faults:\n%s", count, logs)
	}
}

// awaitClassDevices waits until a pod with two GPUs has exactly the CDI devices want besides its GPUs, both in the CDI
// field and in annotations, and returns their device nodes.
func (n *node) awaitClassDevices(t *testing.T, k *kubelet, want ...string) []string {
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
		k.removePod(pod)
		_, annotated, err := cdi.ParseAnnotations(r.annotations)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(annotated)
		slices.Sort(r.cdiDevices)
		if !slices.Equal(annotated, r.cdiDevices) {
			t.Fatalf("got CDI field %v and annotations %v, want the same devices", r.cdiDevices, annotated)
		}
		if others := slices.DeleteFunc(slices.Clone(annotated), isGPU); slices.Equal(others, want) {
			return n.classNodes(t, annotated)
		} else if time.Since(start) > timeout {
			t.Fatalf("got CDI devices %v besides GPUs, want %v", others, want)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func isGPU(name string) bool { return strings.HasPrefix(name, "gpucdi.dev/gpu=") }

// classNodes resolves CDI devices as a runtime does, and returns their device nodes. It omits nodes named /dev/nvidia…
// other than IMEX channels.
func (n *node) classNodes(t *testing.T, names []string) (nodes []string) {
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
