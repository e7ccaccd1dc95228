package devicemanager

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// podCgroupPrefix is the path of a pod's cgroup below the cgroup mount point, without the UID at the end.
const podCgroupPrefix = "/kubepods/besteffort/pod"

// limitingConfigs returns the configs of docs/sharing.md that limit memory: strict, and with level any.
func limitingConfigs(t *testing.T) (strict, anyLevel string) {
	t.Helper()
	return configsOf(t, "Limit the memory of each replica")
}

// startLimitingNode starts an agent and a kubelet on a node with cgroup v2 and eight GPUs. Each GPU has four replicas
// with limited memory.
func startLimitingNode(t *testing.T) (*node, *kubelet) {
	t.Helper()
	profile := simdriver.H100x8()
	profile.Version = "615.71.09" // supports memory limits
	n := newNode(t, profile)
	n.addCgroups(t)
	strict, _ := limitingConfigs(t)
	n.configure(t, strict)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 32, 32)
	return n, k
}

// addCgroups creates a cgroup v2 hierarchy without pods in the host root.
func (n *node) addCgroups(t *testing.T) {
	t.Helper()
	dir := filepath.Join(n.root, "sys/fs/cgroup")
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(podCgroupPrefix)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (n *node) podCgroup(pod *v1.Pod) string {
	return filepath.Join(n.root, "sys/fs/cgroup", podCgroupPrefix+string(pod.UID))
}

// addCgroup creates the cgroup of a pod, as the kubelet does before it starts containers.
func (n *node) addCgroup(t *testing.T, pod *v1.Pod) {
	t.Helper()
	if err := os.Mkdir(n.podCgroup(pod), 0o755); err != nil {
		t.Fatal(err)
	}
}

// endPod removes a pod and its cgroup.
func (n *node) endPod(t *testing.T, k *kubelet, pod *v1.Pod) {
	t.Helper()
	k.removePod(pod)
	if err := os.Remove(n.podCgroup(pod)); err != nil {
		t.Fatal(err)
	}
}

// limits returns the memory limits of a pod in quarters of a GPU's memory, by GPU UUID.
func (n *node) limits(t *testing.T, pod *v1.Pod) map[string]int {
	t.Helper()
	all, err := n.driver.MemoryLimits()
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]int{}
	for _, l := range all {
		if l.Cgroup == podCgroupPrefix+string(pod.UID) {
			limits[l.GPU] = int(4 * l.Bytes / n.driver.State().GPUs[0].Memory)
		}
	}
	return limits
}

// checkLimits checks that a pod has a limit on each of gpus, in quarters of the GPU's memory, and no other limits.
func (n *node) checkLimits(t *testing.T, pod *v1.Pod, gpus []string, quarters int) {
	t.Helper()
	want := map[string]int{}
	for _, uuid := range gpus {
		want[uuid] = quarters
	}
	if got := n.limits(t, pod); !maps.Equal(got, want) {
		t.Errorf("pod %s with %v: limits %v quarters, want %d each", pod.Name, gpus, got, quarters)
	}
}

// Each pod gets the limit of its replicas, even if two pods of the same size start simultaneously.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	n, k := startLimitingNode(t)
	for round := range 50 {
		pods := []*v1.Pod{newPod(fmt.Sprint("first-", round), 1), newPod(fmt.Sprint("second-", round), 1)}
		requests, errs := make([]containerRequest, len(pods)), make([]error, len(pods))
		for _, pod := range pods {
			if err := k.admit(pod); err != nil {
				t.Fatal(err)
			}
			n.addCgroup(t, pod)
		}
		var starts sync.WaitGroup
		for i, pod := range pods {
			starts.Go(func() { requests[i], errs[i] = k.start(t.Context(), pod) })
		}
		starts.Wait()
		for i, pod := range pods {
			if errs[i] != nil {
				t.Fatalf("starting %s: %v", pod.Name, errs[i])
			}
			n.checkLimits(t, pod, n.injectedGPUs(t, requests[i]), 1)
			n.endPod(t, k, pod)
		}
	}
}

// A pod with several replicas of a GPU can allocate the sum of their memory, in all its containers together.
func TestMemoryLimitsAddUp(t *testing.T) {
	t.Parallel()
	n, k := startLimitingNode(t)
	large, gpus := newPod("large", 16), n.uuids()
	if err := k.admit(large); err != nil {
		t.Fatal(err)
	}
	n.addCgroup(t, large)
	n.startPod(t, k, large)
	n.checkLimits(t, large, gpus, 2)
	n.endPod(t, k, large)

	pod := newPod("several", 8)
	second := *pod.Spec.Containers[0].DeepCopy()
	second.Name = "second"
	pod.Spec.Containers = append(pod.Spec.Containers, second)
	initial := *pod.Spec.Containers[0].DeepCopy()
	initial.Name = "init"
	pod.Spec.InitContainers = []v1.Container{initial}
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	n.addCgroup(t, pod)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if _, err := k.startContainer(t.Context(), pod, &c); err != nil {
			t.Fatalf("starting %s: %v", c.Name, err)
		}
		n.checkLimits(t, pod, gpus, 2) // the init container shares its replicas with the first container
	}
}

// A container whose limit cannot be set does not start. When the cause is gone, a retry of the kubelet starts it.
func TestMemoryLimitFails(t *testing.T) {
	t.Parallel()
	n, k := startLimitingNode(t)
	pod := newPod("waits", 1)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	fails := func(want string) {
		t.Helper()
		if r, err := k.start(t.Context(), pod); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("started with %v, error %v; want %q", r, err, want)
		}
	}
	fails("finding the cgroup of pod uid-of-waits")
	n.addCgroup(t, pod)
	if err := n.driver.InjectFault(simdriver.Fault{Func: "nvmlDeviceSetMemoryLimits_v1", Return: unknownError}); err != nil {
		t.Fatal(err)
	}
	fails("setting the memory limit of cgroup /sys/fs/cgroup" + podCgroupPrefix + "uid-of-waits")
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	for _, uuid := range n.uuids() {
		if err := n.driver.InjectFault(simdriver.Fault{GPU: uuid, Func: "nvmlDeviceSetMemoryLimits_v1", Answers: true, Answer: "ignored"}); err != nil {
			t.Fatal(err)
		}
	}
	fails("the driver reports 18446744073709551615 afterwards")
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	// The agent finds the pod of a container in the kubelet's checkpoint. If the checkpoint is missing, the agent makes
	// the kubelet rewrite it.
	if err := os.Remove(filepath.Join(n.kubeletDir, "device-plugins/kubelet_internal_checkpoint")); err != nil {
		t.Fatal(err)
	}
	gpus := n.startPod(t, k, pod)
	n.checkLimits(t, pod, gpus, 1)

	admitted := newPod("admitted", 1)
	if err := k.admit(admitted); err != nil {
		t.Fatal(err)
	}
	n.addCgroup(t, admitted)
	n.killAgent(t)
	fails("")
	n.checkLimits(t, pod, gpus, 1)
	n.startAgent(t)
	n.checkLimits(t, admitted, n.retryStart(t, k, admitted), 1)
	n.checkLimits(t, pod, n.retryStart(t, k, pod), 1)
}

// A pod keeps its limit when the kubelet restarts and the CDI directory is emptied. Its next container and other pods get
// theirs.
func TestMemoryLimitsAfterRestart(t *testing.T) {
	t.Parallel()
	n, k := startLimitingNode(t)
	start := func(name string) (*v1.Pod, []string) {
		pod := newPod(name, 1)
		if err := k.admit(pod); err != nil {
			t.Fatal(err)
		}
		n.addCgroup(t, pod)
		return pod, n.startPod(t, k, pod)
	}
	pod, gpus := start("stays")
	k = k.restart(t, 2)
	k.awaitGPUs(t, 32, 32)
	n.checkLimits(t, pod, gpus, 1)
	if err := os.Remove(n.spec()); err != nil {
		t.Fatal(err)
	}
	n.awaitSpec(t, func(spec string) bool { return spec != "" })
	n.checkLimits(t, pod, gpus, 1)
	if now := n.startPod(t, k, pod); !slices.Equal(now, gpus) {
		t.Errorf("the next container has %v, want %v", now, gpus)
	}
	n.checkLimits(t, pod, gpus, 1)
	next, gpus := start("next")
	n.checkLimits(t, next, gpus, 1)
}

// A GPU whose limit cannot be set does not leave the other GPUs of the pod without limits.
func TestMemoryLimitsOfOtherGPUs(t *testing.T) {
	t.Parallel()
	n, k := startLimitingNode(t)
	gpus := slices.Sorted(slices.Values(n.uuids()))
	for _, function := range []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"} {
		pod := newPod(strings.ToLower(function), 16)
		if err := k.admit(pod); err != nil {
			t.Fatal(err)
		}
		n.addCgroup(t, pod)
		if err := n.driver.InjectFault(simdriver.Fault{GPU: gpus[0], Func: function, Return: unknownError}); err != nil {
			t.Fatal(err)
		}
		if r, err := k.start(t.Context(), pod); err == nil {
			t.Errorf("started with %v although %s fails", r, function)
		}
		n.checkLimits(t, pod, gpus[1:], 2)
		if err := n.driver.ClearFaults(); err != nil {
			t.Fatal(err)
		}
		n.startPod(t, k, pod)
		n.checkLimits(t, pod, gpus, 2)
	}
}

// retryStart retries until the kubelet starts a pod's container, and returns the UUIDs of its GPUs.
func (n *node) retryStart(t *testing.T, k *kubelet, pod *v1.Pod) []string {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		r, err := k.start(t.Context(), pod)
		if err == nil {
			return n.injectedGPUs(t, r)
		}
		if time.Since(start) > timeout {
			t.Fatalf("starting %s: %v", pod.Name, err)
		}
	}
}

// Replicas keep the size with which they were allocated, and never share a GPU with replicas without limits.
func TestMemoryLimitsChange(t *testing.T) {
	t.Parallel()
	n, k := startLimitingNode(t)
	strict, _ := limitingConfigs(t)
	pod := newPod("quarter", 1)
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	n.addCgroup(t, pod)
	gpus := n.startPod(t, k, pod)

	n.configure(t, strings.Replace(strict, "replicas: 4", "replicas: 2", 1))
	k.awaitGPUs(t, 16, 15)
	if got := n.startPod(t, k, pod); !slices.Equal(got, gpus) {
		t.Errorf("after a restart, the pod has %v, want %v", got, gpus)
	}
	n.checkLimits(t, pod, gpus, 1)

	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 4}]")
	k.awaitGPUs(t, 32, 28)
	if got := n.startPod(t, k, pod); !slices.Equal(got, gpus) {
		t.Errorf("without limits, the pod has %v, want %v", got, gpus)
	}
	n.checkLimits(t, pod, gpus, 1)
	n.endPod(t, k, pod)
	k.awaitGPUs(t, 32, 32)
	free := newPod("unlimited", 1)
	if err := k.admit(free); err != nil {
		t.Fatal(err)
	}
	n.addCgroup(t, free)
	n.startPod(t, k, free)
	n.checkLimits(t, free, nil, 0)
}

// GPUs whose driver cannot limit memory are unhealthy, or shared without limits if the config permits that.
func TestMemoryLimitsNotEnforceable(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.addCgroups(t)
	strict, anyLevel := limitingConfigs(t)
	n.configure(t, strict)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 32, 0)
	const reason = "GPU memory of pods cannot be limited: the driver is older than 615; install a newer one; or set level: any in its rule"
	n.awaitStatus(t, func(nodeStatus) bool { return strings.Contains(n.statusText(t), reason) })
	n.configure(t, anyLevel)
	k.awaitGPUs(t, 32, 32)
	pod, _ := n.admitPod(t, k, "unlimited", 1)
	n.checkLimits(t, pod, nil, 0)
}
