package devicemanager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		profile simdriver.Profile
		numa    int
		hints   map[int]int // number of topology hints with a single NUMA node, by number of GPUs requested
	}{
		{simdriver.H100x8(), 2, map[int]int{1: 2, 4: 2, 5: 0}},
		{simdriver.PCIe4(), 2, map[int]int{2: 2, 3: 0}},
		{simdriver.GPUs16(), 2, map[int]int{8: 2, 9: 0}},
		{simdriver.GTX1060x2(), 1, nil},
	} {
		t.Run(tc.profile.Name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tc.profile)
			k := startKubelet(t, n.kubeletDir, tc.numa)
			n.startAgent(t)
			gpus := len(tc.profile.GPUs)
			t.Logf("%d GPUs allocatable %s after the agent started", gpus, k.awaitGPUs(t, int64(gpus), int64(gpus)).Round(time.Millisecond))
			if tc.hints == nil {
				if hints := k.singleNodeHints(1); hints != nil {
					t.Errorf("got topology hints %v without NUMA nodes", hints)
				}
			}
			for requested, want := range tc.hints {
				if got := k.singleNodeHints(requested); len(got) != want {
					t.Errorf("%d GPUs: got single-node hints %v, want %d", requested, got, want)
				}
			}
			_, all := n.admitPod(t, k, "all", gpus)
			if slices.Sort(all); !slices.Equal(all, slices.Sorted(slices.Values(n.uuids()))) {
				t.Errorf("a pod with all GPUs has %v, want %v", all, n.uuids())
			}
		})
	}
}

// singleNodeHints returns the topology hints with a single NUMA node; nil if there are no hints at all.
func (k *kubelet) singleNodeHints(gpus int) []bitmask.BitMask {
	pod := newPod("hints", gpus)
	hints := k.hints(pod)[string(gpuResource)]
	if hints == nil {
		return nil
	}
	single := []bitmask.BitMask{}
	for _, h := range hints {
		if h.NUMANodeAffinity.Count() == 1 {
			single = append(single, h.NUMANodeAffinity)
		}
	}
	return single
}

func TestExclusiveAllocation(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	holders := map[string]string{}
	admit := func(name string, gpus int) (remove func()) {
		pod, uuids := n.admitPod(t, k, name, gpus)
		for _, uuid := range uuids {
			if holder := holders[uuid]; holder != "" {
				t.Errorf("%s is allocated to both %s and %s", uuid, holder, name)
			}
			holders[uuid] = name
		}
		return func() {
			k.removePod(pod)
			for _, uuid := range uuids {
				delete(holders, uuid)
			}
		}
	}
	admit("one", 1)
	remove := admit("two", 2)
	admit("five", 5)
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a ninth GPU was allocated")
	}
	remove()
	admit("late", 2)
}

// The kubelet must follow the agent's preferred allocation: GPUs behind one PCIe switch.
func TestPreferredAllocation(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.PCIe4())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 4, 4)
	gpus := n.driver.State().GPUs
	for i := range 2 {
		_, uuids := n.admitPod(t, k, fmt.Sprint("pair-", i), 2)
		if want := []string{gpus[2*i].UUID, gpus[2*i+1].UUID}; !slices.Equal(uuids, want) {
			t.Errorf("pod %d has %v, want the pair %v", i, uuids, want)
		}
	}
}

func TestUnhealthyGPU(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		function string // NVML function that fails for the GPU
		capacity int64
	}{
		{"no PCI address", "nvmlDeviceGetPciInfo", 8},
		{"no UUID", "nvmlDeviceGetUUID", 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, simdriver.H100x8())
			faulty := n.uuids()[2]
			if err := n.driver.InjectFault(simdriver.Fault{GPU: faulty, Func: tc.function, Return: unknownError}); err != nil {
				t.Fatal(err)
			}
			k := startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			k.awaitGPUs(t, tc.capacity, 7)
			_, uuids := n.admitPod(t, k, "all", 7)
			if slices.Contains(uuids, faulty) {
				t.Errorf("allocated %v, which includes the faulty GPU %s", uuids, faulty)
			}
			if err := k.admit(newPod("late", 1)); err == nil {
				t.Error("the faulty GPU was allocated")
			}
		})
	}
}

// A node without GPUs advertises them once they appear.
func TestNoGPU(t *testing.T) {
	t.Parallel()
	profile := simdriver.H100x8()
	gpus := profile.GPUs
	profile.GPUs = nil
	n := newNode(t, profile)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 0, 0)
	if err := k.admit(newPod("early", 1)); err == nil {
		t.Error("a GPU was allocated on a node without GPUs")
	}
	if err := n.driver.Update(func(s *simdriver.State) error { s.GPUs = gpus; return nil }); err != nil {
		t.Fatal(err)
	}
	t.Logf("8 GPUs allocatable %s after they appeared", k.awaitGPUs(t, 8, 8).Round(time.Millisecond))
	n.admitPod(t, k, "new", 8)
}

// cdi.passBy selects how CDI devices are passed, for runtimes that support only one way. A config change takes effect
// without a new registration.
func TestPassBy(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	sockets := n.sockets(t)
	for i, tc := range []struct {
		config             string
		byField, annotated int
	}{
		{"cdi: {passBy: [field]}", 2, 0},
		{"nodes: [{names: [other, node], cdi: {passBy: [annotation]}}, {names: [other], cdi: {passBy: [field]}}]", 0, 1},
		{"cdi: {passBy: [field]}", 2, 0},
		{"", 2, 1},
		{"cdi: {passBy: [annotation]}", 0, 1},
		{"cdi: {passBy: [annotation, field]}", 2, 1},
	} {
		n.configure(t, tc.config)
		for attempt, start := 0, time.Now(); ; attempt++ {
			pod := newPod(fmt.Sprintf("pod-%d-%d", i, attempt), 2)
			if err := k.admit(pod); err != nil {
				t.Fatal(err)
			}
			r, err := k.start(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			k.removePod(pod)
			if len(r.cdiDevices) == tc.byField && len(r.annotations) == tc.annotated {
				break
			}
			if time.Since(start) > timeout {
				t.Fatalf("config %q: got CDI devices %v and annotations %v", tc.config, r.cdiDevices, r.annotations)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if now := n.sockets(t); !slices.Equal(now, sockets) {
		t.Errorf("got sockets %v after the config changes, want %v", now, sockets)
	}
}
