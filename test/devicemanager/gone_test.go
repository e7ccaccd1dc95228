package devicemanager

import (
	"slices"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// A device that a pod holds stays listed even if it went while no agent ran, until
// the pod is gone.
func TestGoneWhileNoAgentRuns(t *testing.T) {
	n, k := both(t)
	serveLister(t, n.kubeletDir, &holders{k: k})
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
