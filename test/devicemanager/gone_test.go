package devicemanager

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// An allocated GPU that is removed while the agent is down stays advertised, as unhealthy.
func TestGPUGoneWhileAgentIsDown(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	_, held := n.admitPod(t, k, "stays", 3)
	n.killAgent(t)
	if _, err := n.driver.Remove(held[0]); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	k.awaitGPUs(t, 8, 7)
}

// After a GPU is replaced, the CDI device of the old GPU must not resolve to the device node of the new one, which may
// be allocated to another pod.
func TestDeviceNodeOfGoneGPU(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	pod, held := n.admitPod(t, k, "stays", 1)
	removed, err := n.driver.Remove(held[0])
	if err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 7)
	replacement := removed
	replacement.UUID = "GPU-00000000-0000-0000-0000-000000000000"
	if err := n.driver.Add(replacement); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 9, 8)
	if _, uuids := n.admitPod(t, k, "new", 8); !slices.Contains(uuids, replacement.UUID) {
		t.Errorf("a pod with all GPUs has %v, which lacks the new one", uuids)
	}
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if unresolved, err := cache.InjectDevices(&oci.Spec{}, r.cdiDevices...); err == nil || len(unresolved) != 1 {
		t.Errorf("%v resolves to the GPU of another pod; error %v", r.cdiDevices, err)
	}
}

// The kubelet frees the devices of a force-deleted pod while its container still runs. They must not be advertised
// under other IDs until the container runtime no longer lists the container.
func TestForceDeletedPodHoldsItsDevice(t *testing.T) {
	t.Parallel()
	n, k := startNode(t, patient)
	pod, held := n.admitPod(t, k, "forced", 1)
	n.runtime.startContainer(pod, "gpucdi.dev/gpu="+held[0])
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]", patient)
	k.awaitGPUs(t, 14, 14)
	k.removePod(pod)
	stays := func(requests int64, situation string) {
		t.Helper()
		for before := k.lister.calls.Load(); k.lister.calls.Load() < before+requests; time.Sleep(10 * time.Millisecond) {
			if _, allocatable := k.capacity(); quantity(allocatable) != 14 {
				t.Fatalf("%d GPUs are allocatable %s, want 14", quantity(allocatable), situation)
			}
		}
	}
	stays(3, "while the container runs")
	socket := filepath.Join(n.root, containerdSocket)
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	n.serveRuntimeAt(t, crioSocket, true)
	stays(2, "while the runtime restarts, and another one responds")
	if err := os.Rename(socket+".away", socket); err != nil {
		t.Fatal(err)
	}
	n.runtime.removePod(pod)
	k.awaitGPUs(t, 16, 16)
}

// Released devices stay advertised for a minute: the kubelet panics if it records an allocation of a device that is no
// longer advertised.
func TestReleasedDevicesArePruned(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	start := time.Now()
	if _, err := n.driver.Remove(n.uuids()[7]); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 7)
	for ; ; time.Sleep(100 * time.Millisecond) {
		capacity, _ := k.capacity()
		switch elapsed := time.Since(start); {
		case quantity(capacity) == 7:
			if elapsed < 59*time.Second {
				t.Errorf("the released device was advertised for %s, want a minute", elapsed)
			}
			return
		case quantity(capacity) != 8 || elapsed > 3*timeout:
			t.Fatalf("got capacity %d after %s, want 7", quantity(capacity), elapsed)
		}
	}
}

// Without saved state, the agent reads the allocated devices from the kubelet and does not advertise them under other
// IDs.
func TestNoSavedState(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	pod, held := n.admitPod(t, k, "stays", 3)
	n.killAgent(t)
	if err := os.RemoveAll(n.stateDir); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	n.startAgent(t)
	k.awaitGPUs(t, 13, 10)
	if now := n.startPod(t, k, pod); !slices.Equal(now, held) {
		t.Errorf("the restarted container has %v, want %v", now, held)
	}
	for i := range 10 {
		_, allocated := n.admitPod(t, k, fmt.Sprint("new-", i), 1)
		disjoint(t, held, allocated)
	}
	k.removePod(pod)
	k.awaitGPUs(t, 16, 16)
}
