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
	for _, tc := range []struct {
		profile simdriver.Profile
		numa    int
		hints   map[int]int // by GPUs asked for, how many hints name one NUMA node only
	}{
		{simdriver.H100x8(), 2, map[int]int{1: 2, 4: 2, 5: 0}},
		{simdriver.PCIe4(), 2, map[int]int{2: 2, 3: 0}},
		{simdriver.GPUs16(), 2, map[int]int{8: 2, 9: 0}},
		{simdriver.GTX1060x2(), 1, nil},
	} {
		t.Run(tc.profile.Name, func(t *testing.T) {
			n := newNode(t, tc.profile)
			k := startKubelet(t, n.kubeletDir, tc.numa)
			n.startAgent(t)
			gpus := len(tc.profile.GPUs)
			t.Logf("%d GPUs %s after the agent's start", gpus, k.counts(t, int64(gpus), int64(gpus)).Round(time.Millisecond))
			if tc.hints == nil {
				if hints := k.narrowHints(1); hints != nil {
					t.Errorf("hints without any NUMA node: %v", hints)
				}
			}
			for asked, want := range tc.hints {
				if got := k.narrowHints(asked); len(got) != want {
					t.Errorf("%d hints for %d GPUs name one NUMA node: %v; want %d", len(got), asked, got, want)
				}
			}
			_, all := n.admitted(t, k, "all", gpus)
			if slices.Sort(all); !slices.Equal(all, slices.Sorted(slices.Values(n.uuids()))) {
				t.Errorf("a pod with all GPUs has %v, want %v", all, n.uuids())
			}
		})
	}
}

// narrowHints are the hints for so many GPUs that name a single NUMA node; nil
// if there are no hints at all.
func (k *kubelet) narrowHints(gpus int) []bitmask.BitMask {
	pod := newPod("asks", gpus)
	hints := k.hints(pod)[string(gpuResource)]
	if hints == nil {
		return nil
	}
	narrow := []bitmask.BitMask{}
	for _, h := range hints {
		if h.NUMANodeAffinity.Count() == 1 {
			narrow = append(narrow, h.NUMANodeAffinity)
		}
	}
	return narrow
}

func TestPodsShareTheNode(t *testing.T) {
	n, k := both(t)
	taken := map[string]string{}
	take := func(name string, gpus int) func() {
		pod, uuids := n.admitted(t, k, name, gpus)
		for _, uuid := range uuids {
			if holder := taken[uuid]; holder != "" {
				t.Errorf("%s and %s both have %s", holder, name, uuid)
			}
			taken[uuid] = name
		}
		return func() {
			k.forget(pod)
			for _, uuid := range uuids {
				delete(taken, uuid)
			}
		}
	}
	take("one", 1)
	end := take("two", 2)
	take("five", 5)
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a ninth GPU was given out")
	}
	end()
	take("late", 2)
}

// The kubelet's choice must be the agent's preference where it has one: GPUs
// of one PCIe switch.
func TestPreferredDevicesAreTaken(t *testing.T) {
	n := newNode(t, simdriver.PCIe4())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 4, 4)
	gpus := n.driver.State().GPUs
	for i := range 2 {
		_, uuids := n.admitted(t, k, fmt.Sprint("pair-", i), 2)
		if want := []string{gpus[2*i].UUID, gpus[2*i+1].UUID}; !slices.Equal(uuids, want) {
			t.Errorf("pod %d has %v, want the pair %v", i, uuids, want)
		}
	}
}

func TestUnhealthyGPU(t *testing.T) {
	const unknownError = 999 // NVML_ERROR_UNKNOWN
	for _, tc := range []struct {
		name     string
		function string // of NVML, that fails for the GPU
		capacity int64
	}{
		{"tells its name only", "nvmlDeviceGetPciInfo", 8},
		{"tells nothing", "nvmlDeviceGetUUID", 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, simdriver.H100x8())
			sick := n.uuids()[2]
			if err := n.driver.Break(simdriver.Fault{GPU: sick, Func: tc.function, Return: unknownError}); err != nil {
				t.Fatal(err)
			}
			k := startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			k.counts(t, tc.capacity, 7)
			_, uuids := n.admitted(t, k, "all", 7)
			if slices.Contains(uuids, sick) {
				t.Errorf("%v have the sick GPU %s among them", uuids, sick)
			}
			if err := k.admit(newPod("late", 1)); err == nil {
				t.Error("the sick GPU was given out")
			}
		})
	}
}

// A node without a GPU is a state that may pass.
func TestNoGPU(t *testing.T) {
	profile := simdriver.H100x8()
	later := profile.GPUs
	profile.GPUs = nil
	n := newNode(t, profile)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 0, 0)
	if err := k.admit(newPod("early", 1)); err == nil {
		t.Error("a GPU was given out where none is")
	}
	if err := n.driver.Update(func(s *simdriver.State) error { s.GPUs = later; return nil }); err != nil {
		t.Fatal(err)
	}
	t.Logf("8 GPUs %s after they came", k.counts(t, 8, 8).Round(time.Millisecond))
	n.admitted(t, k, "new", 8)
}

// Runtimes that are older than one of the ways want the other alone. A change of
// the config is taken up by itself, without another registration.
func TestPassBy(t *testing.T) {
	n, k := both(t)
	socket := n.sockets(t)
	for i, tc := range []struct {
		config             string
		byField, annotated int
	}{
		{"cdi: {passBy: [field]}", 2, 0},
		{"nodes: [{names: [other, node], cdi: {passBy: [annotation]}}, {names: [other], cdi: {passBy: [field]}}]", 0, 1},
		{"cdi: {passBy: [field]}", 2, 0},
		{"cdi: {passBy: [annotation]}", 0, 1},
		{"cdi: {passBy: [annotation, field]}", 2, 1},
		{"", 2, 1},
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
			k.forget(pod)
			if len(r.cdiDevices) == tc.byField && len(r.annotations) == tc.annotated {
				break
			}
			if time.Since(start) > patience {
				t.Fatalf("with %q a pod is given %v and %v", tc.config, r.cdiDevices, r.annotations)
			}
			time.Sleep(time.Millisecond)
		}
	}
	if now := n.sockets(t); !slices.Equal(now, socket) {
		t.Errorf("the socket is %v after the changes, before %v", now, socket)
	}
}
