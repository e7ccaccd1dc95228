package devicemanager

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

const (
	small  v1.ResourceName = "nvidia.com/mig-1g.5gb"
	middle v1.ResourceName = "nvidia.com/mig-2g.10gb"
	large  v1.ResourceName = "nvidia.com/mig-3g.20gb"
)

// offer is what the kubelet knows of each of the agent's resources: "3 of 5" is
// 3 that can be allocated of 5 that are listed.
type offer map[v1.ResourceName]string

// a100s is what simdriver.A100MIG has, in parts and whole.
func a100s() offer {
	return offer{gpuResource: "3 of 3", small: "16 of 16", middle: "1 of 1", large: "3 of 3"}
}

// String writes an offer as docs/health.md has it.
func (o offer) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		parts = append(parts, o[name]+" `"+strings.TrimPrefix(string(name), "nvidia.com/")+"`")
	}
	return strings.Join(parts, ", ")
}

// but returns the offer with some of it changed.
func (o offer) but(changes offer) offer {
	changed := maps.Clone(o)
	maps.Copy(changed, changes)
	return changed
}

func (k *kubelet) offer() offer {
	has, gives := k.capacity()
	now := offer{}
	for name, count := range has {
		allocatable := gives[name]
		now[name] = fmt.Sprintf("%d of %d", allocatable.Value(), count.Value())
	}
	return now
}

// meets says whether as many can be allocated as in another offer, and at least as many are listed: what
// nobody can hold any more stays listed for a minute, see TestReleasedDevicesAreUnlisted.
func (o offer) meets(want offer) bool {
	for name := range maps.Keys(o) {
		if _, wanted := want[name]; !wanted && !strings.HasPrefix(o[name], "0 of ") {
			return false
		}
	}
	for name, counts := range want {
		var gives, has, wantGives, wantHas int
		if _, err := fmt.Sscanf(o[name], "%d of %d", &gives, &has); err != nil {
			return false
		}
		if _, err := fmt.Sscanf(counts, "%d of %d", &wantGives, &wantHas); err != nil || gives != wantGives || has < wantHas {
			return false
		}
	}
	return true
}

// awaits waits until the kubelet knows that, and returns how long it took.
func (k *kubelet) awaits(t *testing.T, want offer) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		now := k.offer()
		if now.meets(want) {
			return time.Since(start)
		}
		if time.Since(start) > patience {
			t.Fatalf("the kubelet knows %v, want %v", now, want)
		}
	}
}

// bothWithMIG starts an agent with a strategy, and a kubelet that tells who
// holds what, on a node where some GPUs are cut.
func bothWithMIG(t *testing.T, strategy string, change ...func(d *simdriver.Driver) error) (*node, *kubelet) {
	t.Helper()
	n := newNode(t, simdriver.A100MIG())
	for _, c := range change {
		if err := c(n.driver); err != nil {
			t.Fatal(err)
		}
	}
	n.configure(t, "mig: {strategy: "+strategy+"}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	return n, k
}

// holders answers as the kubelet does about its pods: init containers are left out, and
// devices of pods that have ended are dropped first.
type holders struct {
	podresources.UnimplementedPodResourcesListerServer
	k     *kubelet
	calls atomic.Int64
}

func (h *holders) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	h.calls.Add(1)
	h.k.prune()
	response := &podresources.ListPodResourcesResponse{}
	for _, pod := range h.k.activePods() {
		container := &podresources.ContainerResources{Name: pod.Spec.Containers[0].Name}
		for resource, devices := range h.k.GetDevices(string(pod.UID), container.Name) {
			held := &podresources.ContainerDevices{ResourceName: resource}
			for id := range devices {
				held.DeviceIds = append(held.DeviceIds, id)
			}
			container.Devices = append(container.Devices, held)
		}
		response.PodResources = append(response.PodResources, &podresources.PodResources{
			Name: pod.Name, Namespace: pod.Namespace, Containers: []*podresources.ContainerResources{container}})
	}
	return response, nil
}

func (h *holders) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	response := &podresources.AllocatableResourcesResponse{}
	for resource, devices := range h.k.allocatable() {
		healthy := &podresources.ContainerDevices{ResourceName: resource}
		for id := range devices {
			healthy.DeviceIds = append(healthy.DeviceIds, id)
		}
		response.Devices = append(response.Devices, healthy)
	}
	return response, nil
}

// partsOf brings a pod with so many of a resource to the node and returns it
// with the MIG devices that its container can use, by UUID, sorted. The
// container must have their nodes, and none that it does not need.
func (n *node) partsOf(t *testing.T, k *kubelet, name string, of v1.ResourceName, count int) (*v1.Pod, []string) {
	t.Helper()
	pod := podWith(name, of, count)
	if err := k.admit(pod); err != nil {
		t.Fatalf("admitting %s: %v", name, err)
	}
	parts := n.usable(t, k, pod)
	if len(parts) != count {
		t.Errorf("%s can use %v, want %d", name, parts, count)
	}
	return pod, parts
}

func (n *node) usable(t *testing.T, k *kubelet, pod *v1.Pod) []string {
	t.Helper()
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatalf("starting %s: %v", pod.Name, err)
	}
	nodes := n.injected(t, r)
	needed := map[string]bool{}
	for _, control := range []string{"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"} {
		needed["/dev/"+control] = true
	}
	var parts []string
	for _, g := range n.driver.State().GPUs {
		for _, m := range g.MIG {
			own := n.migNodes(t, g, m)
			if slices.ContainsFunc(own, func(node string) bool { return !slices.Contains(nodes, node) }) {
				continue
			}
			parts = append(parts, m.UUID)
			for _, node := range own {
				needed[node] = true
			}
		}
	}
	for _, node := range nodes {
		if !needed[node] {
			t.Errorf("%s has the node %s, which none of %v needs", pod.Name, node, parts)
		}
	}
	slices.Sort(parts)
	return parts
}

// migNodes are the nodes of a MIG device, by what the driver says in /proc.
func (n *node) migNodes(t *testing.T, g simdriver.GPU, m simdriver.MIGDevice) []string {
	t.Helper()
	nodes := []string{fmt.Sprintf("/dev/nvidia%d", g.Minor)}
	instance := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", g.Minor, m.GPUInstance)
	for _, file := range []string{instance + "/access", fmt.Sprintf("%s/ci%d/access", instance, m.CI)} {
		text, err := os.ReadFile(filepath.Join(n.root, file))
		if err != nil {
			t.Fatal(err)
		}
		var minor int
		if _, err := fmt.Sscanf(string(text), "DeviceFileMinor: %d", &minor); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	}
	return nodes
}

// uuidsOf are the MIG devices of a GPU, sorted.
func (n *node) uuidsOf(gpu int) []string {
	var uuids []string
	for _, m := range n.driver.State().GPUs[gpu].MIG {
		uuids = append(uuids, m.UUID)
	}
	slices.Sort(uuids)
	return uuids
}

// cutAll cuts every GPU in two.
func cutAll(d *simdriver.Driver) error {
	for _, g := range d.State().GPUs {
		if err := d.Partition(g.UUID, "3g.20gb", "3g.20gb"); err != nil {
			return err
		}
	}
	return nil
}

func cutNone(d *simdriver.Driver) error {
	for _, g := range d.State().GPUs {
		if err := d.Unpartition(g.UUID); err != nil {
			return err
		}
	}
	return nil
}

func TestStrategies(t *testing.T) {
	for _, tc := range []struct {
		name, strategy string
		change         func(*simdriver.Driver) error
		want           offer
		pods           map[v1.ResourceName]int
	}{
		{"none", "none", nil, offer{gpuResource: "3 of 8"}, nil},
		{"mixed", "mixed", nil, a100s(), map[v1.ResourceName]int{small: 7, middle: 1, large: 2}},
		{"mixed, all cut alike", "mixed", cutAll, offer{gpuResource: "0 of 0", large: "16 of 16"}, map[v1.ResourceName]int{large: 4}},
		{"mixed, with the rarer profiles", "mixed", func(d *simdriver.Driver) error {
			return d.Partition(d.State().GPUs[4].UUID, "1c.3g.20gb", "1g.5gb+me")
		}, a100s().but(offer{"nvidia.com/mig-1c.3g.20gb": "1 of 1", "nvidia.com/mig-1g.5gb.me": "1 of 1"}),
			map[v1.ResourceName]int{"nvidia.com/mig-1c.3g.20gb": 1, "nvidia.com/mig-1g.5gb.me": 1}},
		{"single", "single", cutAll, offer{gpuResource: "16 of 16"}, map[v1.ResourceName]int{gpuResource: 3}},
		{"single, none cut", "single", cutNone, offer{gpuResource: "8 of 8"}, nil},
		{"single, not alike", "single", nil, offer{gpuResource: "0 of 23"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var change []func(*simdriver.Driver) error
			if tc.change != nil {
				change = append(change, tc.change)
			}
			n, k := bothWithMIG(t, tc.strategy, change...)
			k.awaits(t, tc.want)
			for of, count := range tc.pods {
				n.partsOf(t, k, "pod-"+strings.ReplaceAll(string(of), "/", "-"), of, count)
			}
		})
	}
}

// Whole GPUs are given out beside MIG devices, and those that are cut are not.
func TestWholeGPUsBesideMIGDevices(t *testing.T) {
	n, k := bothWithMIG(t, "mixed")
	k.awaits(t, a100s())
	_, whole := n.admitted(t, k, "whole", 3)
	if want := n.uuids()[5:]; !slices.Equal(whole, want) {
		t.Errorf("the whole GPUs are %v, want %v", whole, want)
	}
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a GPU in MIG mode was given out as a whole")
	}
}

// MIG devices come from few GPUs, and from the one that has the fewest left, so
// that others can be cut anew.
func TestMIGDevicesArePacked(t *testing.T) {
	n, k := bothWithMIG(t, "mixed")
	k.awaits(t, a100s())
	for i, want := range []struct{ count, gpu int }{{1, 2}, {7, 0}, {1, 2}, {7, 1}} {
		_, parts := n.partsOf(t, k, fmt.Sprint("pod-", i), small, want.count)
		for _, uuid := range parts {
			if !slices.Contains(n.uuidsOf(want.gpu), uuid) {
				t.Errorf("pod %d has %v, want parts of GPU %d alone", i, parts, want.gpu)
			}
		}
	}
}

// The strategy changes with the config file; what pods hold stays listed where it was, and
// is not given out a second time by its new name.
func TestStrategyChangesLive(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := bothWithMIG(t, "mixed", cutAll)
	k.awaits(t, offer{gpuResource: "0 of 0", large: "16 of 16"})
	pod, held := n.partsOf(t, k, "stays", large, 2)
	n.configure(t, "mig: {strategy: single}")
	k.awaits(t, offer{gpuResource: "14 of 16", large: "0 of 2"})
	if now := n.usable(t, k, pod); !slices.Equal(now, held) {
		t.Errorf("the restarted container has %v, before %v", now, held)
	}
	_, others := n.partsOf(t, k, "new", gpuResource, 14)
	disjoint(t, held, others)
	k.forget(pod)
	k.awaits(t, offer{gpuResource: "16 of 16", large: "0 of 0"})
}

// A MIG device that a pod holds stays listed while its GPU is cut anew, and as
// long as the pod is there; without one it goes.
func TestHeldMIGDeviceStaysListed(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := bothWithMIG(t, "mixed")
	k.awaits(t, a100s())
	pod, held := n.partsOf(t, k, "stays", middle, 1) // of GPU 2
	if err := n.driver.Partition(n.uuids()[2], "3g.20gb", "3g.20gb"); err != nil {
		t.Fatal(err)
	}
	// GPU 2 had one each of 3g and 2g, and two of 1g. The one of 3g is as it was; the other takes the slices
	// of the one that the pod holds.
	drained := a100s().but(offer{large: "3 of 4", small: "14 of 14", middle: "0 of 1"})
	k.awaits(t, drained)
	if r, err := k.start(t.Context(), pod); err != nil || !strings.HasSuffix(r.cdiDevices[0], held[0]) {
		t.Errorf("the restarted container asks for %v, %v; want %v", r.cdiDevices, err, held)
	} else if nodes := n.injected(t, r); len(nodes) == 0 {
		t.Error("its name leads to nothing")
	}
	k.forget(pod)
	k.awaits(t, drained.but(offer{large: "4 of 4", middle: "0 of 0"}))
}

// Who holds a MIG device has its GPU's node, and so could use the whole GPU once
// it is out of MIG mode.
func TestGPUWaitsForItsMIGDevices(t *testing.T) {
	n, k := bothWithMIG(t, "mixed")
	k.awaits(t, a100s())
	pod, _ := n.partsOf(t, k, "stays", large, 2) // GPU 3
	if err := n.driver.Unpartition(n.uuids()[3]); err != nil {
		t.Fatal(err)
	}
	k.awaits(t, a100s().but(offer{gpuResource: "3 of 4", large: "1 of 3"}))
	_, whole := n.admitted(t, k, "whole", 3)
	if slices.Contains(whole, n.uuids()[3]) {
		t.Errorf("%v were given out, while a pod holds MIG devices of %s", whole, n.uuids()[3])
	}
	k.forget(pod)
	k.awaits(t, a100s().but(offer{gpuResource: "4 of 4", large: "1 of 1"}))
}

// A device that an init container holds is held, although the kubelet does not list init
// containers among the pod resources: what overlaps it waits for the pod's end.
func TestAnInitContainerHoldsItsDevice(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newNode(t, simdriver.A100MIG())
	n.configure(t, "mig: {strategy: mixed}")
	k := startKubelet(t, n.kubeletDir, 2)
	lister := k.lister
	n.startAgent(t)
	k.awaits(t, a100s())
	pod := podWith("stays", large, 2) // GPU 3
	pod.Spec.InitContainers = pod.Spec.Containers
	pod.Spec.InitContainers[0].Name = "init"
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.Unpartition(n.uuids()[3]); err != nil {
		t.Fatal(err)
	}
	waits := a100s().but(offer{gpuResource: "3 of 4", large: "1 of 3"})
	k.awaits(t, waits)
	// The agent asks who holds devices when it may release some, and then with each probe.
	for asked := lister.calls.Load(); lister.calls.Load() < asked+5; time.Sleep(10 * time.Millisecond) {
		if now := k.offer(); !now.meets(waits) {
			t.Fatalf("while an init container holds GPU 3 the kubelet knows %v, want %v", now, waits)
		}
	}
	k.forget(pod)
	k.awaits(t, a100s().but(offer{gpuResource: "4 of 4", large: "1 of 1"}))
}

// The status tells MIG devices apart, and why GPUs in MIG mode are of no use.
func TestStatusOfMIGDevices(t *testing.T) {
	n, k := bothWithMIG(t, "mixed")
	k.awaits(t, a100s())
	gpus := n.driver.State().GPUs
	table := n.statusText(t)
	for _, row := range []string{
		"0:6  " + gpus[0].MIG[6].UUID + "  NVIDIA A100-SXM4-40GB MIG 1g.5gb   4.8 GiB   nvidia.com/mig-1g.5gb   healthy",
		"3:1  " + gpus[3].MIG[1].UUID + "  NVIDIA A100-SXM4-40GB MIG 3g.20gb  19.6 GiB  nvidia.com/mig-3g.20gb  healthy",
		"7    " + gpus[7].UUID + "  NVIDIA A100-SXM4-40GB              40.0 GiB  nvidia.com/gpu          healthy",
	} {
		if !strings.Contains(table, row) {
			t.Errorf("%q is not in\n%s", row, table)
		}
	}
	n.configure(t, "mig: {strategy: none}")
	n.awaitMetric(t, `gpucdi_devices{health="unhealthy",reason="config",resource="nvidia.com/gpu"} 5`)
	n.awaitStatus(t, func(s nodeStatus) bool { // what is released is listed to the kubelet alone
		return !slices.ContainsFunc(s.Devices, func(d deviceStatus) bool { return d.Resource == string(large) })
	})
	k.awaits(t, offer{gpuResource: "3 of 8", small: "0 of 0", middle: "0 of 0", large: "0 of 0"})
}
