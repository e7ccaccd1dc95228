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

// sharing are the configs of docs/sharing.md, which share each GPU by four, the second
// one by another name.
func sharing(t *testing.T) (byOwnName, renamed string) {
	t.Helper()
	blocks, err := docs.Blocks(t.Context(), "docs/sharing.md", "Sharing", "yaml")
	if err != nil || len(blocks) != 2 {
		t.Fatalf("%d configs, %v", len(blocks), err)
	}
	return blocks[0], blocks[1]
}

// bothWithSharing starts an agent that shares the two GPUs of a node by four, and a
// kubelet that tells who holds what.
func bothWithSharing(t *testing.T) (*node, *kubelet) {
	t.Helper()
	n := newNode(t, simdriver.GTX1060x2())
	byOwnName, _ := sharing(t)
	n.configure(t, byOwnName)
	k := startKubelet(t, n.kubeletDir, 1)
	n.startAgent(t)
	k.counts(t, 8, 8)
	return n, k
}

// sharers brings a pod for each replica of two GPUs to the node, and returns them
// by the GPU that they have.
func (n *node) sharers(t *testing.T, k *kubelet, replicas int) map[string][]*v1.Pod {
	t.Helper()
	pods := map[string][]*v1.Pod{}
	for i := range 2 * replicas {
		pod, uuids := n.admitted(t, k, fmt.Sprint("pod-", i), 1)
		pods[uuids[0]] = append(pods[uuids[0]], pod)
		if apart := len(pods[n.uuids()[0]]) - len(pods[n.uuids()[1]]); apart < -1 || apart > 1 {
			t.Errorf("after %d pods the GPUs are shared by %v", i+1, pods)
		}
	}
	return pods
}

func TestPodsShareGPUs(t *testing.T) {
	n, k := bothWithSharing(t)
	pods := n.sharers(t, k, 3)
	onBoth, _ := n.admitted(t, k, "on-both", 2)
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a ninth replica was given out")
	}

	// People see a GPU once, with all who have it.
	table := n.statusText(t)
	for _, uuid := range n.uuids() {
		_, row, _ := strings.Cut(table, uuid)
		row, _, _ = strings.Cut(row, "\n")
		says := []string{"nvidia.com/gpu ×4  healthy", "default/on-both/main"}
		for _, pod := range pods[uuid] {
			says = append(says, "default/"+pod.Name+"/main")
		}
		for _, part := range says {
			if !strings.Contains(row, part) {
				t.Errorf("%q is not in the row of %s:%s", part, uuid, row)
			}
		}
		if strings.Count(table, uuid) != 1 || strings.Count(row, "default/") != 4 {
			t.Errorf("the table is\n%s", table)
		}
	}
	n.awaitMetric(t, `gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 2`)

	// A container with more replicas than there are GPUs has each once.
	for _, pod := range append(slices.Concat(pods[n.uuids()[0]], pods[n.uuids()[1]]), onBoth) {
		k.forget(pod)
	}
	greedy := newPod("greedy", 5)
	if err := k.admit(greedy); err != nil {
		t.Fatal(err)
	}
	if uuids := n.started(t, k, greedy); len(uuids) != 2 {
		t.Errorf("a pod with five replicas has %v, want both GPUs", uuids)
	}

	// What the kubelet has kept leads to the same GPUs after its restart, and after
	// the agent's.
	k = k.restart(t, 1)
	k.counts(t, 8, 8)
	n.killAgent(t)
	k.counts(t, 8, 0)
	n.startAgent(t)
	k.counts(t, 8, 8)
	if uuids := n.started(t, k, greedy); len(uuids) != 2 {
		t.Errorf("after restarts the pod has %v, want both GPUs", uuids)
	}
	if err := k.admit(newPod("too-many", 4)); err == nil {
		t.Error("more replicas were given out than there are")
	}
}

// What befalls a GPU befalls all of its replicas and no others, and they heal
// together. docs/health.md has the row that this logs.
func TestSharingFaults(t *testing.T) {
	const row = "| an XID of a GPU that four share | 4 of 8 |"
	readHealth(t).must(t, row)
	n, k := bothWithSharing(t)
	pods := n.sharers(t, k, 1)
	sick, well := n.uuids()[0], n.uuids()[1]
	happened := time.Now()
	if err := n.driver.RaiseXID(sick, 9999); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 4)
	t.Logf("%s %s | %s |", row, time.Since(happened).Round(time.Millisecond), k.counts(t, 8, 8).Round(time.Millisecond))
	if err := n.driver.Lose(sick); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 4)
	for id := range k.allocatable()[string(gpuResource)] {
		if !strings.HasPrefix(id, well+"::") {
			t.Errorf("%s is healthy while %s is lost", id, sick)
		}
	}
	n.awaitDevice(t, sick, "xid_79")
	n.awaitDevice(t, well, "")
	if _, uuids := n.admitted(t, k, "meanwhile", 1); uuids[0] != well {
		t.Errorf("a pod is given %v", uuids)
	}
	k = k.restart(t, 1) // which forgets nothing
	k.counts(t, 8, 4)
	if err := n.driver.Return(sick); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 8)
	for uuid, pod := range pods {
		if uuids := n.started(t, k, pod[0]); uuids[0] != uuid {
			t.Errorf("%s has %v now, and had %s", pod[0].Name, uuids, uuid)
		}
	}
}

// How many share a GPU changes while pods do. A replica that is held stays listed
// and leads to its GPU; of the new ones there are as many as fit beside it. A GPU that is to be had alone,
// or to be shared, waits for those who have it otherwise.
func TestSharingChanges(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := bothWithSharing(t)
	pods := n.sharers(t, k, 3)
	first, second := n.uuids()[0], n.uuids()[1]
	stillHave := func(uuid string, pods ...*v1.Pod) {
		t.Helper()
		for _, pod := range pods {
			if now := n.started(t, k, pod); !slices.Equal(now, []string{uuid}) {
				t.Errorf("%s has %v now, and had %s", pod.Name, now, uuid)
			}
		}
	}
	end := func(pods ...*v1.Pod) {
		for _, pod := range pods {
			k.forget(pod)
		}
	}

	// The driver has no part in it, and is not left out of sight for it.
	before := n.inits(t)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 6}]")
	k.counts(t, 12, 2) // three quarters of each GPU are held, and a sixth fits
	if err := n.driver.RaiseXID(first, 9999); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 12, 1)
	if after := n.inits(t); before == 0 || after != before {
		t.Errorf("the driver was opened %d times, and %d times once its GPUs were shared otherwise", before, after)
	}
	k.counts(t, 12, 2)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	k.counts(t, 6, 0)
	stillHave(first, pods[first]...)

	n.configure(t, "resources: []")
	k.counts(t, 8, 0)
	n.awaitMetric(t, `gpucdi_devices{health="draining",reason="",resource="nvidia.com/gpu"} 4`)
	end(pods[first]...)
	end(pods[second][2])
	k.counts(t, 4, 1)
	alone, uuids := n.admitted(t, k, "alone", 1)
	if uuids[0] != first {
		t.Errorf("%v is given out to be had alone, and shared", uuids)
	}

	// An agent that starts now is told of them by the kubelet alone.
	n.killAgent(t)
	k.counts(t, 4, 0)
	n.startAgent(t)
	k.counts(t, 4, 1)
	stillHave(second, pods[second][:2]...)

	// By another name there are as many as fit beside those who have them by the first.
	_, renamed := sharing(t)
	n.configure(t, renamed)
	const other = "nvidia.com/gpu.shared"
	k.awaits(t, offer{gpuResource: "0 of 3", other: "2 of 8"})
	stillHave(second, pods[second][:2]...)
	end(pods[second][:2]...)
	k.awaits(t, offer{gpuResource: "0 of 1", other: "4 of 8"})
	end(alone)
	k.awaits(t, offer{gpuResource: "0 of 0", other: "8 of 8"})
}

// inits is how often the driver was opened.
func (n *node) inits(t *testing.T) uint64 {
	t.Helper()
	calls, err := simdriver.Calls(n.calls)
	if err != nil {
		t.Fatal(err)
	}
	return calls["nvmlInit_v2"]
}

// MIG devices are shared as GPUs are, and fail with their GPU.
func TestSharedMIGDevices(t *testing.T) {
	n := newNode(t, simdriver.A100MIG())
	n.configure(t, "mig: {strategy: mixed}", "resources: [{name: nvidia.com/mig-3g.20gb, replicas: 2}]")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaits(t, a100s().but(offer{large: "6 of 6"}))
	pod := podWith("both-halves", large, 2)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	if parts := n.usable(t, k, pod); len(parts) != 2 {
		t.Errorf("a pod with two replicas can use %v", parts)
	}
	halved := n.uuids()[3]
	if err := n.driver.Lose(halved); err != nil {
		t.Fatal(err)
	}
	k.awaits(t, a100s().but(offer{large: "2 of 6"}))
	if err := n.driver.Return(halved); err != nil {
		t.Fatal(err)
	}
	k.awaits(t, a100s().but(offer{large: "6 of 6"}))
}

// The kubelet takes as many replicas as there can be. One more are none at all, and
// it is said why.
func TestAsManyReplicasAsThereCanBe(t *testing.T) {
	n, k := bothWithSharing(t)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 10000}]")
	t.Logf("20,000 replicas are known after %s", k.counts(t, 20_000, 20_000).Round(time.Millisecond))
	start := time.Now()
	n.admitted(t, k, "one-of-many", 2)
	t.Logf("a pod has two of them after %s", time.Since(start).Round(time.Millisecond))
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 10001}]")
	k.counts(t, 20_002, 0)
	if f := n.awaitDevice(t, n.uuids()[0], "config").Fault; !strings.Contains(f.Message, "more than the 20000") {
		t.Errorf("the fault is %+v", f)
	}
}

// A planned change, here sharing what was not shared, is no fault: nothing is logged as an
// error, and the devices that leave are reported as draining.
func TestSharingIsNoOutage(t *testing.T) {
	n, k := both(t)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	k.counts(t, 16, 16)
	n.configure(t)
	k.counts(t, 8, 8)
	n.stopAgent(t)
	log := n.said.String()
	if strings.Contains(log, "level=ERROR") || strings.Contains(log, "unhealthy") {
		t.Errorf("a planned change is logged as a fault:\n%s", log)
	}
	for _, line := range []string{"device draining", "device available"} {
		if !strings.Contains(log, line) {
			t.Errorf("%q is not logged:\n%s", line, log)
		}
	}
}
