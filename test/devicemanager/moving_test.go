package devicemanager

import (
	"crypto/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/nvidia"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// TestMoving migrates a node from NVIDIA's device plugin to gpucdi and rolls back, as in docs/moving.md. Both plugins
// advertise the same device IDs, so the kubelet keeps its allocations.
func TestMoving(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/moving.md")
	if err != nil {
		t.Fatal(err)
	}
	if version := strings.TrimPrefix(tools.NVIDIAPluginVersion, "v"); !strings.Contains(string(text), "k8s-device-plugin "+version) {
		t.Errorf("docs/moving.md does not name the tested version k8s-device-plugin %s", version)
	}

	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	stopNVIDIA := n.startNVIDIAPlugin(t)
	k.awaitGPUs(t, 8, 8)
	old := newPod("old", 3)
	if err := k.admit(old); err != nil {
		t.Fatal(err)
	}
	before := k.requestedGPUs(t, old)
	if len(before) != 3 {
		t.Fatalf("with NVIDIA's plugin a pod has %v, want 3 GPUs", before)
	}
	stopNVIDIA()
	k.awaitGPUs(t, 8, 0)

	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	if now := k.requestedGPUs(t, old); !slices.Equal(now, before) {
		t.Errorf("the restarted container has %v, want %v", now, before)
	}
	stays, allocated := n.admitPod(t, k, "new", 5)
	disjoint(t, before, allocated)
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a ninth GPU was allocated")
	}
	n.stopAgent(t)
	k.awaitGPUs(t, 8, 0)

	n.startNVIDIAPlugin(t)
	k.awaitGPUs(t, 8, 8)
	if now := k.requestedGPUs(t, stays); !slices.Equal(now, slices.Sorted(slices.Values(allocated))) {
		t.Errorf("after the rollback, the restarted container has %v, want %v", now, allocated)
	}
	k.removePod(old)
	back := newPod("back", 3)
	if err := k.admit(back); err != nil {
		t.Fatal(err)
	}
	if now := k.requestedGPUs(t, back); !slices.Equal(now, before) {
		t.Errorf("after the rollback, a new pod has %v, want the free %v", now, before)
	}
}

// In TestForeignPlugin another plugin registers the resource of a running agent, and then exits. Up to Kubernetes 1.36,
// the kubelet then has no healthy device, and keeps the agent's stream open. A list on that stream would make the
// devices healthy, but the kubelet would still call the other plugin. So the agent must register again.
func TestForeignPlugin(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]int64{"no new list": 0, "new list for a failed GPU": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, k := startNode(t)
			n.awaitHealthCheck(t, k)
			stopNVIDIA := n.startNVIDIAPlugin(t)
			for start := time.Now(); k.allocatesFrom(t, "gpucdi.dev/gpu"); time.Sleep(50 * time.Millisecond) {
				if time.Since(start) > timeout {
					t.Fatal("the kubelet does not use NVIDIA's plugin")
				}
			}
			stopNVIDIA()
			k.awaitGPUs(t, 8, 0)
			for _, g := range n.driver.State().GPUs[:failed] {
				if err := n.driver.InjectFault(simdriver.Fault{GPU: g.UUID, Func: "nvmlDeviceGetMemoryInfo", Return: unknownError}); err != nil {
					t.Fatal(err)
				}
			}
			k.awaitGPUs(t, 8, 8-failed)
			n.admitPod(t, k, "new", int(8-failed))
		})
	}
}

// awaitHealthCheck waits until the agent has queried which devices the kubelet considers healthy. The agent does so
// every 15 s. It detects that the kubelet lacks a device only after a response that had all healthy devices.
func (n *node) awaitHealthCheck(t *testing.T, k *kubelet) {
	t.Helper()
	before := k.lister.allocatableCalls.Load()
	for start := time.Now(); k.lister.allocatableCalls.Load() == before; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatal("the agent does not check the kubelet's devices")
		}
	}
}

// allocatesFrom reports whether the kubelet allocates GPUs through the plugin whose CDI devices have that kind. Each call
// uses a new pod, since the kubelet keeps the allocation of an earlier pod with the same UID for some time.
func (k *kubelet) allocatesFrom(t *testing.T, kind string) bool {
	t.Helper()
	pod := newPod("probe-"+rand.Text(), 1)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	defer k.removePod(pod)
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(r.cdiDevices[0], kind+"=")
}

// requestedGPUs returns the sorted UUIDs in the CDI devices that the kubelet requests for the pod's container.
func (k *kubelet) requestedGPUs(t *testing.T, pod *v1.Pod) (uuids []string) {
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

// startNVIDIAPlugin starts NVIDIA's device plugin, and stops it at the end of the test unless stop was called before.
func (n *node) startNVIDIAPlugin(t *testing.T) (stop func()) {
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
	args := nvidia.Plugin(dir, n.root)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := namespace.Start(cmd); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its exit status does not matter
		namespace.Close()
	})
	t.Cleanup(stop)
	return stop
}
