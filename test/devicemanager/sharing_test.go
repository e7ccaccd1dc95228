package devicemanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// sharingConfigs returns the configs of docs/sharing.md, with four replicas of each GPU. The second one renames the
// resource.
func sharingConfigs(t *testing.T) (sameName, renamed string) {
	t.Helper()
	return configsOf(t, "Configure replicas")
}

// configsOf returns the two configs in a section of docs/sharing.md.
func configsOf(t *testing.T, section string) (first, second string) {
	t.Helper()
	blocks, err := docs.Blocks(t.Context(), "docs/sharing.md", section, "yaml")
	if err != nil || len(blocks) != 2 {
		t.Fatalf("got %d configs, want 2; error %v", len(blocks), err)
	}
	return blocks[0], blocks[1]
}

// startSharingNode starts an agent and a kubelet on a node with two GPUs, with four replicas each.
func startSharingNode(t *testing.T, config ...string) (*node, *kubelet) {
	t.Helper()
	n := newNode(t, simdriver.GTX1060x2())
	sameName, _ := sharingConfigs(t)
	n.configure(t, append(config, sameName)...)
	k := startKubelet(t, n.kubeletDir, 1)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	return n, k
}

// admitSharing admits pods with one replica each, until the given number of replicas of each of the two GPUs is
// allocated, and returns the pods by GPU UUID. It checks that the replicas are allocated evenly.
func (n *node) admitSharing(t *testing.T, k *kubelet, replicas int) map[string][]*v1.Pod {
	t.Helper()
	pods := map[string][]*v1.Pod{}
	for i := range 2 * replicas {
		pod, uuids := n.admitPod(t, k, fmt.Sprint("pod-", i), 1)
		pods[uuids[0]] = append(pods[uuids[0]], pod)
		if diff := len(pods[n.uuids()[0]]) - len(pods[n.uuids()[1]]); diff < -1 || diff > 1 {
			t.Errorf("after %d pods: got pods by GPU %v, want them evenly distributed", i+1, pods)
		}
	}
	return pods
}

func TestPodsShareGPUs(t *testing.T) {
	t.Parallel()
	n, k := startSharingNode(t)
	pods := n.admitSharing(t, k, 3)
	onBoth, _ := n.admitPod(t, k, "on-both", 2)
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a ninth replica was allocated")
	}

	// The status table has one row for each GPU, with all holders.
	n.awaitStatus(t, func(s nodeStatus) bool { return s.Kubelet.PodsError == "" })
	table := n.statusText(t, "-o", "wide")
	for _, uuid := range n.uuids() {
		_, row, _ := strings.Cut(table, uuid)
		row, _, _ = strings.Cut(row, "\n")
		want := []string{"nvidia.com/gpu ×4  healthy", "default/on-both/main"}
		for _, pod := range pods[uuid] {
			want = append(want, "default/"+pod.Name+"/main")
		}
		for _, part := range want {
			if !strings.Contains(row, part) {
				t.Errorf("the row of %s lacks %q:%s", uuid, part, row)
			}
		}
		if strings.Count(table, uuid) != 1 || strings.Count(row, "default/") != 4 {
			t.Errorf("got status table\n%s", table)
		}
	}
	n.awaitMetric(t, `gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 2`)

	// A container with more replicas than the node has GPUs gets each GPU once.
	for _, pod := range append(slices.Concat(pods[n.uuids()[0]], pods[n.uuids()[1]]), onBoth) {
		k.removePod(pod)
	}
	greedy := newPod("greedy", 5)
	if err := k.admit(greedy); err != nil {
		t.Fatal(err)
	}
	if uuids := n.startPod(t, k, greedy); len(uuids) != 2 {
		t.Errorf("a pod with five replicas has %v, want both GPUs", uuids)
	}

	// The allocation survives restarts of kubelet and agent.
	k = k.restart(t, 1)
	k.awaitGPUs(t, 8, 8)
	n.killAgent(t)
	k.awaitGPUs(t, 8, 0)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	if uuids := n.startPod(t, k, greedy); len(uuids) != 2 {
		t.Errorf("after restarts the pod has %v, want both GPUs", uuids)
	}
	if err := k.admit(newPod("too-many", 4)); err == nil {
		t.Error("more replicas were allocated than exist")
	}
}

// A fault of a GPU affects all of its replicas and no others, and they recover together. The test logs a row of
// docs/health.md.
func TestSharingFaults(t *testing.T) {
	t.Parallel()
	const row = "| an XID of a GPU shared by four | 4 of 8 |"
	readHealthDoc(t).requireRow(t, row)
	n, k := startSharingNode(t)
	pods := n.admitSharing(t, k, 1)
	faulty, healthy := n.uuids()[0], n.uuids()[1]
	injected := time.Now()
	if err := n.driver.RaiseXID(faulty, 9999); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 4)
	t.Logf("%s %s | %s |", row, time.Since(injected).Round(time.Millisecond), k.awaitGPUs(t, 8, 8).Round(time.Millisecond))
	if err := n.driver.Lose(faulty); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 4)
	for id := range k.allocatable()[string(gpuResource)] {
		if !strings.HasPrefix(id, healthy+"::") {
			t.Errorf("%s is healthy while %s is lost", id, faulty)
		}
	}
	n.awaitDevice(t, faulty, "xid_79")
	n.awaitDevice(t, healthy, "")
	if _, uuids := n.admitPod(t, k, "meanwhile", 1); uuids[0] != healthy {
		t.Errorf("a pod has %v, want %s", uuids, healthy)
	}
	k = k.restart(t, 1) // unhealthy replicas stay unhealthy
	k.awaitGPUs(t, 8, 4)
	if err := n.driver.Return(faulty); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 8)
	for uuid, pod := range pods {
		if uuids := n.startPod(t, k, pod[0]); uuids[0] != uuid {
			t.Errorf("%s has %v, want %s", pod[0].Name, uuids, uuid)
		}
	}
}

// The number of replicas changes while pods hold some. Allocated replicas stay advertised and resolve to their GPU. The
// new replicas that fit on the rest of the GPU become allocatable. A GPU that becomes exclusive, or was allocated
// exclusively, waits until it is released.
func TestSharingConfigChange(t *testing.T) {
	t.Parallel()
	n, k := startSharingNode(t, patient)
	pods := n.admitSharing(t, k, 3)
	first, second := n.uuids()[0], n.uuids()[1]
	checkGPU := func(uuid string, pods ...*v1.Pod) {
		t.Helper()
		for _, pod := range pods {
			if now := n.startPod(t, k, pod); !slices.Equal(now, []string{uuid}) {
				t.Errorf("%s has %v, want %s", pod.Name, now, uuid)
			}
		}
	}
	remove := func(pods ...*v1.Pod) {
		for _, pod := range pods {
			k.removePod(pod)
		}
	}

	// A change of replicas neither reopens the driver nor interrupts fault detection.
	before := n.nvmlCallCounts(t)["nvmlInit_v2"]
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 6}]", patient)
	k.awaitGPUs(t, 12, 2) // a quarter of each GPU is left, on which one sixth fits
	if err := n.driver.RaiseXID(first, 9999); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 12, 1)
	if after := n.nvmlCallCounts(t)["nvmlInit_v2"]; before == 0 || after != before {
		t.Errorf("NVML was initialized %d times before the config change and %d times after it", before, after)
	}
	k.awaitGPUs(t, 12, 2)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	k.awaitGPUs(t, 6, 0)
	checkGPU(first, pods[first]...)

	n.configure(t, "resources: []")
	k.awaitGPUs(t, 8, 0)
	n.awaitMetric(t, `gpucdi_devices{health="draining",reason="",resource="nvidia.com/gpu"} 4`)
	remove(pods[first]...)
	remove(pods[second][2])
	k.awaitGPUs(t, 4, 1)
	exclusive, uuids := n.admitPod(t, k, "exclusive", 1)
	if uuids[0] != first {
		t.Errorf("exclusive allocation of %v, want the released %s", uuids, first)
	}

	// A restarted agent reads the allocations from the kubelet.
	n.killAgent(t)
	k.awaitGPUs(t, 4, 0)
	n.startAgent(t)
	k.awaitGPUs(t, 4, 1)
	checkGPU(second, pods[second][:2]...)

	// After a rename, the replicas that fit on the rest of a shared GPU are allocatable under the new name.
	_, renamed := sharingConfigs(t)
	n.configure(t, renamed)
	const other = "nvidia.com/gpu.shared"
	k.awaitResources(t, resourceCounts{gpuResource: "0 of 3", other: "2 of 8"})
	checkGPU(second, pods[second][:2]...)
	remove(pods[second][:2]...)
	k.awaitResources(t, resourceCounts{gpuResource: "0 of 1", other: "4 of 8"})
	remove(exclusive)
	k.awaitResources(t, resourceCounts{gpuResource: "0 of 0", other: "8 of 8"})
}

// MIG devices are shared like GPUs, and become unhealthy with their GPU.
func TestSharedMIGDevices(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.A100MIG())
	n.configure(t, "mig: {strategy: mixed}", "resources: [{name: nvidia.com/mig-3g.20gb, replicas: 2}]")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitResources(t, a100s().with(resourceCounts{large: "6 of 6"}))
	pod := podWith("both-halves", large, 2)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	if parts := n.usableMIGDevices(t, k, pod); len(parts) != 2 {
		t.Errorf("a pod with two replicas can use %v, want 2 MIG devices", parts)
	}
	faulty := n.uuids()[3]
	if err := n.driver.Lose(faulty); err != nil {
		t.Fatal(err)
	}
	k.awaitResources(t, a100s().with(resourceCounts{large: "2 of 6"}))
	if err := n.driver.Return(faulty); err != nil {
		t.Fatal(err)
	}
	k.awaitResources(t, a100s().with(resourceCounts{large: "6 of 6"}))
}

// The kubelet accepts the maximum number of replicas. With more, all replicas are unhealthy with a config fault.
func TestReplicaLimit(t *testing.T) {
	t.Parallel()
	n, k := startSharingNode(t)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 10000}]")
	t.Logf("20,000 replicas allocatable after %s", k.awaitGPUs(t, 20_000, 20_000).Round(time.Millisecond))
	start := time.Now()
	n.admitPod(t, k, "one-of-many", 2)
	t.Logf("two of them allocated in %s", time.Since(start).Round(time.Millisecond))
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 10001}]")
	k.awaitGPUs(t, 20_002, 0)
	if f := n.awaitDevice(t, n.uuids()[0], "config").Fault; !strings.Contains(f.Message, "more than the limit of 20000") {
		t.Errorf("got fault %+v", f)
	}
}

// A planned change, here of sharing, is not a fault: no error is logged, and withdrawn devices are logged as draining.
func TestPlannedChangeIsNotAFault(t *testing.T) {
	t.Parallel()
	n, k := startNode(t, patient)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]", patient)
	k.awaitGPUs(t, 16, 16)
	n.configure(t, patient)
	k.awaitGPUs(t, 8, 8)
	n.stopAgent(t)
	log := n.logs.String()
	if strings.Contains(log, "level=ERROR") || strings.Contains(log, "unhealthy") {
		t.Errorf("a planned change is logged as a fault:\n%s", log)
	}
	for _, line := range []string{"device draining", "device available"} {
		if !strings.Contains(log, line) {
			t.Errorf("%q is not logged:\n%s", line, log)
		}
	}
}
