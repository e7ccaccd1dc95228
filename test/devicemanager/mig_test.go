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

// resourceCounts has the number of devices of each resource in the kubelet: "3 of 5" means 3 allocatable, capacity 5.
type resourceCounts map[v1.ResourceName]string

// a100s returns the counts of simdriver.A100MIG with MIG strategy mixed.
func a100s() resourceCounts {
	return resourceCounts{gpuResource: "3 of 3", small: "16 of 16", middle: "1 of 1", large: "3 of 3"}
}

// String formats counts as docs/health.md does.
func (c resourceCounts) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, c[name]+" `"+strings.TrimPrefix(string(name), "nvidia.com/")+"`")
	}
	return strings.Join(parts, ", ")
}

// with returns a copy with changes applied.
func (c resourceCounts) with(changes resourceCounts) resourceCounts {
	changed := maps.Clone(c)
	maps.Copy(changed, changes)
	return changed
}

func (k *kubelet) resourceCounts() resourceCounts {
	capacity, allocatable := k.capacity()
	counts := resourceCounts{}
	for name, total := range capacity {
		healthy := allocatable[name]
		counts[name] = fmt.Sprintf("%d of %d", healthy.Value(), total.Value())
	}
	return counts
}

// satisfies reports whether the allocatable counts equal those in want and each capacity is at least the one in want.
// Resources that want lacks must have no allocatable devices. Capacity may be larger: released devices stay advertised
// for a minute, see TestReleasedDevicesArePruned.
func (c resourceCounts) satisfies(want resourceCounts) bool {
	for name := range maps.Keys(c) {
		if _, wanted := want[name]; !wanted && !strings.HasPrefix(c[name], "0 of ") {
			return false
		}
	}
	for name, counts := range want {
		var allocatable, capacity, wantAllocatable, wantCapacity int
		if _, err := fmt.Sscanf(c[name], "%d of %d", &allocatable, &capacity); err != nil {
			return false
		}
		if _, err := fmt.Sscanf(counts, "%d of %d", &wantAllocatable, &wantCapacity); err != nil ||
			allocatable != wantAllocatable || capacity < wantCapacity {
			return false
		}
	}
	return true
}

// awaitResources waits until the kubelet's counts satisfy want, and returns the time it took.
func (k *kubelet) awaitResources(t *testing.T, want resourceCounts) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		now := k.resourceCounts()
		if now.satisfies(want) {
			return time.Since(start)
		}
		if time.Since(start) > timeout {
			t.Fatalf("got resources %v, want %v", now, want)
		}
	}
}

// startMIGNode applies the changes to the driver of a node with simdriver.A100MIG, and then starts a kubelet and an
// agent with the MIG strategy.
func startMIGNode(t *testing.T, strategy string, change ...func(d *simdriver.Driver) error) (*node, *kubelet) {
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

// podLister serves the pod resources API for pods without sidecars. Like the kubelet, it lists neither init containers
// nor pods that have ended. It lists only the first container of a pod.
type podLister struct {
	podresources.UnimplementedPodResourcesListerServer
	k                *kubelet
	calls            atomic.Int64 // of List
	allocatableCalls atomic.Int64
}

func (l *podLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	l.calls.Add(1)
	l.k.prune()
	response := &podresources.ListPodResourcesResponse{}
	for _, pod := range l.k.activePods() {
		container := &podresources.ContainerResources{Name: pod.Spec.Containers[0].Name}
		for resource, devices := range l.k.GetDevices(string(pod.UID), container.Name) {
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

func (l *podLister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	l.allocatableCalls.Add(1)
	response := &podresources.AllocatableResourcesResponse{}
	for resource, devices := range l.k.allocatable() {
		healthy := &podresources.ContainerDevices{ResourceName: resource}
		for id := range devices {
			healthy.DeviceIds = append(healthy.DeviceIds, id)
		}
		response.Devices = append(response.Devices, healthy)
	}
	return response, nil
}

// admitMIG admits a pod that requests count devices of a resource, starts its container, and returns the pod and the
// sorted UUIDs of its MIG devices.
func (n *node) admitMIG(t *testing.T, k *kubelet, name string, resourceName v1.ResourceName, count int) (*v1.Pod, []string) {
	t.Helper()
	pod := podWith(name, resourceName, count)
	if err := k.admit(pod); err != nil {
		t.Fatalf("admitting %s: %v", name, err)
	}
	uuids := n.usableMIGDevices(t, k, pod)
	if len(uuids) != count {
		t.Errorf("%s can use %v, want %d MIG devices", name, uuids, count)
	}
	return pod, uuids
}

// usableMIGDevices starts the pod's container and returns the sorted UUIDs of the MIG devices for which all device
// nodes are injected. It reports an error for each device node that none of them needs.
func (n *node) usableMIGDevices(t *testing.T, k *kubelet, pod *v1.Pod) []string {
	t.Helper()
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatalf("starting %s: %v", pod.Name, err)
	}
	nodes := n.injectedNodes(t, r)
	needed := map[string]bool{}
	for _, control := range []string{"nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"} {
		needed["/dev/"+control] = true
	}
	var uuids []string
	for _, g := range n.driver.State().GPUs {
		for _, m := range g.MIG {
			own := n.migNodes(t, g, m)
			if slices.ContainsFunc(own, func(node string) bool { return !slices.Contains(nodes, node) }) {
				continue
			}
			uuids = append(uuids, m.UUID)
			for _, node := range own {
				needed[node] = true
			}
		}
	}
	for _, node := range nodes {
		if !needed[node] {
			t.Errorf("%s has the device node %s, which none of %v needs", pod.Name, node, uuids)
		}
	}
	slices.Sort(uuids)
	return uuids
}

// migNodes returns the device nodes of a MIG device according to /proc/driver/nvidia/capabilities.
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

// migUUIDs returns the sorted UUIDs of the MIG devices of the GPU at an index.
func (n *node) migUUIDs(gpu int) []string {
	var uuids []string
	for _, m := range n.driver.State().GPUs[gpu].MIG {
		uuids = append(uuids, m.UUID)
	}
	slices.Sort(uuids)
	return uuids
}

// partitionAll partitions every GPU into two MIG devices.
func partitionAll(d *simdriver.Driver) error {
	for _, g := range d.State().GPUs {
		if err := d.Partition(g.UUID, "3g.20gb", "3g.20gb"); err != nil {
			return err
		}
	}
	return nil
}

func unpartitionAll(d *simdriver.Driver) error {
	for _, g := range d.State().GPUs {
		if err := d.Unpartition(g.UUID); err != nil {
			return err
		}
	}
	return nil
}

func TestMIGStrategies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, strategy string
		change         func(*simdriver.Driver) error
		want           resourceCounts
		pods           map[v1.ResourceName]int
	}{
		{"none", "none", nil, resourceCounts{gpuResource: "3 of 8"}, nil},
		{"mixed", "mixed", nil, a100s(), map[v1.ResourceName]int{small: 7, middle: 1, large: 2}},
		{"mixed, uniform layout", "mixed", partitionAll, resourceCounts{gpuResource: "0 of 0", large: "16 of 16"}, map[v1.ResourceName]int{large: 4}},
		{"mixed, other profiles", "mixed", func(d *simdriver.Driver) error {
			return d.Partition(d.State().GPUs[4].UUID, "1c.3g.20gb", "1g.5gb+me")
		}, a100s().with(resourceCounts{"nvidia.com/mig-1c.3g.20gb": "1 of 1", "nvidia.com/mig-1g.5gb.me": "1 of 1"}),
			map[v1.ResourceName]int{"nvidia.com/mig-1c.3g.20gb": 1, "nvidia.com/mig-1g.5gb.me": 1}},
		{"single", "single", partitionAll, resourceCounts{gpuResource: "16 of 16"}, map[v1.ResourceName]int{gpuResource: 3}},
		{"single, no MIG", "single", unpartitionAll, resourceCounts{gpuResource: "8 of 8"}, nil},
		{"single, different layouts", "single", nil, resourceCounts{gpuResource: "0 of 23"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var change []func(*simdriver.Driver) error
			if tc.change != nil {
				change = append(change, tc.change)
			}
			n, k := startMIGNode(t, tc.strategy, change...)
			k.awaitResources(t, tc.want)
			for name, count := range tc.pods {
				n.admitMIG(t, k, "pod-"+strings.ReplaceAll(string(name), "/", "-"), name, count)
			}
		})
	}
}

// With strategy mixed, only GPUs that are not in MIG mode are allocatable as whole GPUs.
func TestWholeGPUsAndMIGDevices(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed")
	k.awaitResources(t, a100s())
	_, whole := n.admitPod(t, k, "whole", 3)
	if want := n.uuids()[5:]; !slices.Equal(whole, want) {
		t.Errorf("allocated the GPUs %v, want %v", whole, want)
	}
	if err := k.admit(newPod("late", 1)); err == nil {
		t.Error("a GPU in MIG mode was allocated as a whole GPU")
	}
}

// MIG devices are allocated on as few GPUs as possible, first on GPUs with the fewest free MIG devices, so that other
// GPUs can be repartitioned.
func TestMIGDevicesArePacked(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed")
	k.awaitResources(t, a100s())
	for i, want := range []struct{ count, gpu int }{{1, 2}, {7, 0}, {1, 2}, {7, 1}} {
		_, uuids := n.admitMIG(t, k, fmt.Sprint("pod-", i), small, want.count)
		for _, uuid := range uuids {
			if !slices.Contains(n.migUUIDs(want.gpu), uuid) {
				t.Errorf("pod %d has %v, want only MIG devices of GPU %d", i, uuids, want.gpu)
			}
		}
	}
}

// After a change of the MIG strategy, allocated devices stay advertised under their old resource and are not allocated
// through the new one.
func TestMIGStrategyReload(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed", partitionAll)
	k.awaitResources(t, resourceCounts{gpuResource: "0 of 0", large: "16 of 16"})
	pod, held := n.admitMIG(t, k, "stays", large, 2)
	n.configure(t, "mig: {strategy: single}")
	k.awaitResources(t, resourceCounts{gpuResource: "14 of 16", large: "0 of 2"})
	if now := n.usableMIGDevices(t, k, pod); !slices.Equal(now, held) {
		t.Errorf("the restarted container has %v, want %v", now, held)
	}
	_, others := n.admitMIG(t, k, "new", gpuResource, 14)
	disjoint(t, held, others)
	k.removePod(pod)
	k.awaitResources(t, resourceCounts{gpuResource: "16 of 16", large: "0 of 0"})
}

// An allocated MIG device stays advertised after its GPU is repartitioned, until the pod ends.
func TestAllocatedMIGDeviceStaysAdvertised(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed")
	k.awaitResources(t, a100s())
	pod, held := n.admitMIG(t, k, "stays", middle, 1) // on GPU 2
	if err := n.driver.Partition(n.uuids()[2], "3g.20gb", "3g.20gb"); err != nil {
		t.Fatal(err)
	}
	// GPU 2 had one 3g, one 2g and two 1g. The first 3g is unchanged; the second overlaps the 2g that the pod holds.
	draining := a100s().with(resourceCounts{large: "3 of 4", small: "14 of 14", middle: "0 of 1"})
	k.awaitResources(t, draining)
	if r, err := k.start(t.Context(), pod); err != nil || !strings.HasSuffix(r.cdiDevices[0], held[0]) {
		t.Errorf("the restarted container requests %v, %v; want %v", r.cdiDevices, err, held)
	} else if nodes := n.injectedNodes(t, r); len(nodes) == 0 {
		t.Error("the CDI device injects no device node")
	}
	k.removePod(pod)
	k.awaitResources(t, draining.with(resourceCounts{large: "4 of 4", middle: "0 of 0"}))
}

// A container with a MIG device has the device node of the GPU, and could use the whole GPU once MIG mode is disabled.
// The GPU is not allocatable until that container's pod ends.
func TestGPUWaitsForItsMIGDevices(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed")
	k.awaitResources(t, a100s())
	pod, _ := n.admitMIG(t, k, "stays", large, 2) // GPU 3
	if err := n.driver.Unpartition(n.uuids()[3]); err != nil {
		t.Fatal(err)
	}
	k.awaitResources(t, a100s().with(resourceCounts{gpuResource: "3 of 4", large: "1 of 3"}))
	_, whole := n.admitPod(t, k, "whole", 3)
	if slices.Contains(whole, n.uuids()[3]) {
		t.Errorf("allocated %v while a pod holds MIG devices of %s", whole, n.uuids()[3])
	}
	k.removePod(pod)
	k.awaitResources(t, a100s().with(resourceCounts{gpuResource: "4 of 4", large: "1 of 1"}))
}

// The pod resources API lists no init containers except sidecars. A device that overlaps the device of an init
// container must still wait until the pod ends.
func TestInitContainerHoldsItsDevice(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.A100MIG())
	n.configure(t, "mig: {strategy: mixed}", patient)
	k := startKubelet(t, n.kubeletDir, 2)
	lister := k.lister
	n.startAgent(t)
	k.awaitResources(t, a100s())
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
	waiting := a100s().with(resourceCounts{gpuResource: "3 of 4", large: "1 of 3"})
	k.awaitResources(t, waiting)
	// While a device drains, the agent polls the pod resources API, which does not list the init container.
	for before := lister.calls.Load(); lister.calls.Load() < before+5; time.Sleep(10 * time.Millisecond) {
		if now := k.resourceCounts(); !now.satisfies(waiting) {
			t.Fatalf("while an init container holds GPU 3: got resources %v, want %v", now, waiting)
		}
	}
	k.removePod(pod)
	k.awaitResources(t, a100s().with(resourceCounts{gpuResource: "4 of 4", large: "1 of 1"}))
}

// The status identifies MIG devices. With strategy none, GPUs in MIG mode have a config fault, and their MIG devices
// are not in the status.
func TestStatusOfMIGDevices(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed")
	k.awaitResources(t, a100s())
	gpus := n.driver.State().GPUs
	n.awaitStatus(t, func(s nodeStatus) bool {
		unavailable := func(d deviceStatus) bool { return d.Fault != nil || d.State != "" }
		return len(s.Devices) > 0 && !slices.ContainsFunc(s.Devices, unavailable)
	})
	table := n.statusText(t, "-o", "wide")
	for _, row := range []string{
		"0:6  " + gpus[0].MIG[6].UUID + "  NVIDIA A100-SXM4-40GB MIG 1g.5gb   4.8 GiB   nvidia.com/mig-1g.5gb   healthy",
		"3:1  " + gpus[3].MIG[1].UUID + "  NVIDIA A100-SXM4-40GB MIG 3g.20gb  19.6 GiB  nvidia.com/mig-3g.20gb  healthy",
		"7    " + gpus[7].UUID + "  NVIDIA A100-SXM4-40GB              40.0 GiB  nvidia.com/gpu          healthy",
	} {
		if !strings.Contains(table, row) {
			t.Errorf("status table lacks %q:\n%s", row, table)
		}
	}
	n.configure(t, "mig: {strategy: none}")
	n.awaitMetric(t, `gpucdi_devices{health="unhealthy",reason="config",resource="nvidia.com/gpu"} 5`)
	n.awaitStatus(t, func(s nodeStatus) bool { // released devices are advertised to the kubelet, but not in the status
		return !slices.ContainsFunc(s.Devices, func(d deviceStatus) bool { return d.Resource == string(large) })
	})
	k.awaitResources(t, resourceCounts{gpuResource: "3 of 8", small: "0 of 0", middle: "0 of 0", large: "0 of 0"})
}
