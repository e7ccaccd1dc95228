package devicemanager

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// A device that a pod holds stays listed even if it went while no agent ran, until
// the pod is gone.
func TestGoneWhileNoAgentRuns(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := both(t)
	pod, held := n.admitted(t, k, "stays", 3)
	n.killAgent(t)
	if _, err := n.driver.Remove(held[0]); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	k.counts(t, 8, 7)
	k.forget(pod)
	k.counts(t, 7, 7)
}

// After a GPU was exchanged, its name must not lead to the one that has its node
// now, which may be another pod's.
func TestNodeOfAGoneGPU(t *testing.T) {
	n, k := both(t)
	pod, held := n.admitted(t, k, "stays", 1)
	gone, err := n.driver.Remove(held[0])
	if err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 7)
	other := gone
	other.UUID = "GPU-00000000-0000-0000-0000-000000000000"
	if err := n.driver.Add(other); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 9, 8)
	if _, uuids := n.admitted(t, k, "new", 8); !slices.Contains(uuids, other.UUID) {
		t.Errorf("a pod with all GPUs has %v, without the new one", uuids)
	}
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := cdi.NewCache(cdi.WithSpecDirs(n.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if unresolved, err := runtime.InjectDevices(&oci.Spec{}, r.cdiDevices...); err == nil || len(unresolved) != 1 {
		t.Errorf("%v lead to the GPU that another pod has; error %v", r.cdiDevices, err)
	}
}

// A pod that was deleted by force leaves the kubelet's records while its container runs on: what it has is
// not given out as something else before the container runtime has lost it.
func TestAForceDeletedPodHoldsItsDevice(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := both(t)
	pod, held := n.admitted(t, k, "forced", 1)
	n.runtime.run(pod, "gpucdi.dev/gpu="+held[0])
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	k.counts(t, 14, 14)
	k.forget(pod)
	for asked := k.lister.calls.Load(); k.lister.calls.Load() < asked+3; time.Sleep(10 * time.Millisecond) {
		if _, gives := k.capacity(); quantity(gives) != 14 {
			t.Fatalf("while the container runs the kubelet can allocate %d, want 14", quantity(gives))
		}
	}
	n.runtime.end(pod)
	k.counts(t, 16, 16)
}

// What nobody can hold any more stays listed for a minute: the kubelet may be about to record it, and
// panics if it is not listed.
func TestReleasedDevicesAreUnlisted(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := both(t)
	gone := n.uuids()[7]
	if _, err := n.driver.Remove(gone); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 7)
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		has, _ := k.capacity()
		switch took := time.Since(start); {
		case quantity(has) == 7:
			return
		case quantity(has) != 8 || took > 3*patience:
			t.Fatalf("the kubelet has %d GPUs after %s", quantity(has), took)
		}
	}
}

// An agent that finds no saved state learns from the kubelet what pods hold, and offers none of it as
// something else.
func TestNoSavedState(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := both(t)
	pod, held := n.admitted(t, k, "stays", 3)
	n.killAgent(t)
	if err := os.RemoveAll(n.stateDir); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	n.startAgent(t)
	k.counts(t, 13, 10)
	if now := n.started(t, k, pod); !slices.Equal(now, held) {
		t.Errorf("the restarted container has %v, before %v", now, held)
	}
	for i := range 10 {
		_, given := n.admitted(t, k, fmt.Sprint("new-", i), 1)
		disjoint(t, held, given)
	}
	k.forget(pod)
	k.counts(t, 16, 16)
}
