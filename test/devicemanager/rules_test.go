package devicemanager

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// mixedRules are resource rules for simdriver.Mixed: two H100 (0, 1) and two GTX 1060 (2, 3).
const mixedRules = `resources:
- {select: {index: [1]}, exclude: true}
- {select: {product: "*h100*"}, name: nvidia.com/h100}
- {select: {memory: "<16Gi", index: [2]}, name: example.com/gpu.small, replicas: 4, failRequestsGreaterThanOne: true}`

// Rules assign GPUs to resources. When the rules change, unallocated GPUs move to their new resource immediately, and
// allocated ones when their pods end.
func TestResourceRules(t *testing.T) {
	t.Parallel()
	const (
		h100  v1.ResourceName = "nvidia.com/h100"
		small v1.ResourceName = "example.com/gpu.small"
	)
	n := newNode(t, simdriver.Mixed())
	n.configure(t, mixedRules)
	k := startKubelet(t, n.kubeletDir, 1)
	n.startAgent(t)
	withRules := resourceCounts{h100: "1 of 1", small: "4 of 4", gpuResource: "1 of 1"}
	k.awaitResources(t, withRules)
	excluded := n.awaitStatus(t, func(s nodeStatus) bool { return len(s.Devices) > 0 }).Excluded
	if len(excluded) != 1 || excluded[0].ID != n.uuids()[1] || excluded[0].Rule != "resources[0]" {
		t.Errorf("the status has excluded devices %+v, want %s by resources[0]", excluded, n.uuids()[1])
	}
	n.checkMonitored(t, n.uuids()[1])

	pods := map[v1.ResourceName]*v1.Pod{}
	for resource, index := range map[v1.ResourceName]int{h100: 0, small: 2, gpuResource: 3} {
		pod := podWith(strings.NewReplacer("/", "-", ".", "-").Replace(string(resource)), resource, 1)
		if err := k.admit(pod); err != nil {
			t.Fatal(err)
		}
		if got := n.startPod(t, k, pod); !slices.Equal(got, []string{n.uuids()[index]}) {
			t.Errorf("a pod with %s has %v, want GPU %d", resource, got, index)
		}
		pods[resource] = pod
	}
	if err := k.admit(podWith("greedy", small, 2)); err == nil || !strings.Contains(err.Error(), "failRequestsGreaterThanOne") {
		t.Errorf("a pod with 2 of %s: error %v, want one with failRequestsGreaterThanOne", small, err)
	}

	// The excluded GPU was never allocated, so it is available immediately. The GPU that stays nvidia.com/gpu stays
	// allocated.
	n.configure(t)
	k.awaitResources(t, resourceCounts{h100: "0 of 1", small: "0 of 1", gpuResource: "2 of 2"})
	for resource, index := range map[v1.ResourceName]int{h100: 0, small: 2, gpuResource: 3} {
		if got := n.startPod(t, k, pods[resource]); !slices.Equal(got, []string{n.uuids()[index]}) {
			t.Errorf("after the change, the pod with %s has %v, want GPU %d", resource, got, index)
		}
	}
	k.removePod(pods[small])
	k.awaitResources(t, resourceCounts{h100: "0 of 1", gpuResource: "3 of 3"})

	// When the rules are restored, the H100 is immediately available again, although its pod still holds it.
	n.configure(t, mixedRules)
	k.awaitResources(t, withRules)
	for _, pod := range pods {
		k.removePod(pod)
	}
	k.awaitResources(t, withRules)
}

// checkMonitored checks that a GPU that is not advertised is monitored: the status and the metrics show the fault of an
// XID that requires a reset, until the recovery action is none.
func (n *node) checkMonitored(t *testing.T, gpu string) {
	t.Helper()
	setRecovery := func(action int) {
		if err := n.driver.Update(func(s *simdriver.State) error { s.GPU(gpu).RecoveryAction = action; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	setRecovery(simdriver.RecoveryReset)
	if err := n.driver.RaiseXID(gpu, 48); err != nil {
		t.Fatal(err)
	}
	n.awaitGPUFault(t, gpu, "xid_48")
	n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_healthy{code="xid_48",gpu=%q} 0`, gpu))
	n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_temperature_celsius{gpu=%q} `, gpu))
	setRecovery(simdriver.RecoveryNone)
	n.awaitGPUFault(t, gpu, "")
	n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_healthy{code="",gpu=%q} 1`, gpu))
}

// awaitGPUFault waits until a GPU has a fault with the code, or is healthy if code is empty.
func (n *node) awaitGPUFault(t *testing.T, gpu, code string) {
	t.Helper()
	n.awaitStatus(t, func(s nodeStatus) bool {
		for _, g := range s.GPUs {
			if g.UUID == gpu {
				return g.Fault == nil && code == "" || g.Fault != nil && g.Fault.Code == code
			}
		}
		return false
	})
}

// Without saved state, an agent does not advertise a GPU under a new resource while a pod holds it through a resource
// that was removed from the config.
func TestLostRules(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.Mixed())
	n.configure(t, mixedRules)
	k := startKubelet(t, n.kubeletDir, 1)
	n.startAgent(t)
	k.awaitResources(t, resourceCounts{"nvidia.com/h100": "1 of 1", "example.com/gpu.small": "4 of 4", gpuResource: "1 of 1"})
	pod := podWith("stays", "nvidia.com/h100", 1)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	n.killAgent(t)
	if err := os.RemoveAll(n.stateDir); err != nil {
		t.Fatal(err)
	}
	n.configure(t)
	n.startAgent(t)
	k.awaitResources(t, resourceCounts{gpuResource: "3 of 3"})
	k.removePod(pod)
	k.awaitResources(t, resourceCounts{gpuResource: "4 of 4"})
}
