package devicemanager

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/nvidia"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// docs/moving.md: from NVIDIA's plugin and back, the kubelet takes the GPUs of both
// for the same ones.
func TestMoving(t *testing.T) {
	text, err := os.ReadFile("../../docs/moving.md")
	if err != nil {
		t.Fatal(err)
	}
	if version := strings.TrimPrefix(tools.NVIDIAPluginVersion, "v"); !strings.Contains(string(text), "NVIDIA's plugin "+version) {
		t.Errorf("docs/moving.md does not say that this is %s", version)
	}

	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	stopNVIDIA := n.startNVIDIA(t)
	k.counts(t, 8, 8)
	old := newPod("old", 3)
	if err := k.admit(old); err != nil {
		t.Fatal(err)
	}
	before := k.named(t, old)
	if len(before) != 3 {
		t.Fatalf("by NVIDIA's plugin a pod has %v, want 3 GPUs", before)
	}
	stopNVIDIA()
	k.counts(t, 8, 0)

	n.startAgent(t)
	k.counts(t, 8, 8)
	if now := k.named(t, old); !slices.Equal(now, before) {
		t.Errorf("the old pod's container restarts with %v, before %v", now, before)
	}
	stays, given := n.admitted(t, k, "new", 5)
	disjoint(t, before, given)
	if err := k.admit(newPod("one too many", 1)); err == nil {
		t.Error("a ninth GPU was given out")
	}
	n.stopAgent(t)
	k.counts(t, 8, 0)

	n.startNVIDIA(t)
	k.counts(t, 8, 8)
	if now := k.named(t, stays); !slices.Equal(now, slices.Sorted(slices.Values(given))) {
		t.Errorf("back at NVIDIA's plugin, the newer pod's container restarts with %v, before %v", now, given)
	}
	k.forget(old)
	back := newPod("back", 3)
	if err := k.admit(back); err != nil {
		t.Fatal(err)
	}
	if now := k.named(t, back); !slices.Equal(now, before) {
		t.Errorf("back at NVIDIA's plugin, a pod gets %v, while %v are free", now, before)
	}
}

// named are the GPUs that the pod's container is to have, by what the runtime is told.
func (k *kubelet) named(t *testing.T, pod *v1.Pod) (uuids []string) {
	t.Helper()
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatalf("starting %s: %v", pod.Name, err)
	}
	for _, name := range r.cdiDevices {
		_, uuid, _ := strings.Cut(name, "=")
		uuids = append(uuids, uuid)
	}
	slices.Sort(uuids)
	return uuids
}

// startNVIDIA starts NVIDIA's device plugin. It ends with the test, or before.
func (n *node) startNVIDIA(t *testing.T) (stop func()) {
	t.Helper()
	dir, err := tools.Build(t.Context(), tools.NVIDIAPlugin)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(n.cdiDir, 0o755); err != nil {
		t.Fatal(err)
	}
	namespace, err := nvidia.NewNamespace(n.root, map[string]string{n.kubeletDir: "/var/lib/kubelet", n.cdiDir: "/var/run/cdi"})
	if err != nil {
		t.Fatal(err)
	}
	words := nvidia.Plugin(dir, n.root)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := namespace.Start(cmd); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // how it ends is its own business
		namespace.Close()
	})
	t.Cleanup(stop)
	return stop
}
