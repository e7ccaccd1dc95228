package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
)

const gpuResource v1.ResourceName = "nvidia.com/gpu"

// timeout limits how long a test waits for a condition.
const timeout = 60 * time.Second

// newManagerImpl is called by NewManagerImpl with the default path of the kubelet's socket.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(klog.Logger, string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

// kubelet runs the kubelet's device manager in a directory.
type kubelet struct {
	*devicemanager.ManagerImpl
	dir    string
	lister *podLister // serves the pod resources API, unless a test replaces it

	mutex sync.Mutex
	pods  []*v1.Pod
}

// startKubelet starts a kubelet on a machine with numaNodes NUMA nodes. It restores the checkpoint in dir, if any;
// pods are the running pods.
func startKubelet(t *testing.T, dir string, numaNodes int, pods ...*v1.Pod) *kubelet {
	t.Helper()
	var nodes []cadvisorapi.Node
	for id := range numaNodes {
		nodes = append(nodes, cadvisorapi.Node{Id: id})
	}
	socket := filepath.Join(dir, "device-plugins", "kubelet.sock")
	manager, err := newManagerImpl(klog.Background(), socket, nodes, noTopology())
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{ManagerImpl: manager, dir: dir, pods: pods}
	k.lister = &podLister{k: k}
	servePodLister(t, dir, k.lister)
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := k.Start(klog.Background(), k.activePods, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) stop() { _ = k.Stop(klog.Background()) }

// restart stops the kubelet and starts a new one with the same directory and pods.
func (k *kubelet) restart(t *testing.T, numaNodes int) *kubelet {
	t.Helper()
	k.stop()
	return startKubelet(t, k.dir, numaNodes, k.activePods()...)
}

func (k *kubelet) activePods() []*v1.Pod {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return slices.Clone(k.pods)
}

// awaitGPUs waits until the kubelet's capacity is at least capacity GPUs, of which exactly allocatable are allocatable,
// and returns the time it took. Capacity may be larger: released devices stay advertised for a minute, see
// TestReleasedDevicesArePruned.
func (k *kubelet) awaitGPUs(t *testing.T, capacity, allocatable int64) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		gotCapacity, gotAllocatable := k.capacity()
		if quantity(gotCapacity) >= capacity && quantity(gotAllocatable) == allocatable {
			return time.Since(start)
		}
		if time.Since(start) > timeout {
			t.Fatalf("got capacity %d and allocatable %d, want at least %d and exactly %d",
				quantity(gotCapacity), quantity(gotAllocatable), capacity, allocatable)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// quantity returns the number of GPUs in the list; -1 if it lacks the resource.
func quantity(list v1.ResourceList) int64 {
	q, ok := list[gpuResource]
	if !ok {
		return -1
	}
	return q.Value()
}

// newPod returns a pod with one container that requests GPUs.
func newPod(name string, gpus int) *v1.Pod { return podWith(name, gpuResource, gpus) }

// podWith returns a pod with one container that requests count devices of a resource.
func podWith(name string, resourceName v1.ResourceName, count int) *v1.Pod {
	list := v1.ResourceList{resourceName: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-of-" + name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Limits: list, Requests: list},
		}}},
	}
}

// admit adds a pod and allocates its devices, as the kubelet does on pod admission.
func (k *kubelet) admit(pod *v1.Pod) error {
	k.mutex.Lock()
	k.pods = append(k.pods, pod)
	k.mutex.Unlock()
	err := k.allocate(pod)
	if err != nil {
		k.removePod(pod)
	}
	return err
}

// allocate allocates devices to a pod's containers, init containers first.
func (k *kubelet) allocate(pod *v1.Pod) error {
	for i := range pod.Spec.InitContainers {
		if err := k.allocateFor(pod, &pod.Spec.InitContainers[i]); err != nil {
			return err
		}
	}
	for i := range pod.Spec.Containers {
		if err := k.allocateFor(pod, &pod.Spec.Containers[i]); err != nil {
			return err
		}
	}
	return nil
}

// removePod removes a pod from the active pods. The device manager frees its devices at the next allocation.
func (k *kubelet) removePod(pod *v1.Pod) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.pods = slices.DeleteFunc(k.pods, func(p *v1.Pod) bool { return p.UID == pod.UID })
}

// containerRequest has the CDI devices that the kubelet requests from the runtime for a container.
type containerRequest struct {
	cdiDevices  []string
	annotations map[string]string
}

// start returns the request for the first start or a restart of the pod's first container.
func (k *kubelet) start(ctx context.Context, pod *v1.Pod) (containerRequest, error) {
	return k.startContainer(ctx, pod, &pod.Spec.Containers[0])
}

func (k *kubelet) startContainer(ctx context.Context, pod *v1.Pod, c *v1.Container) (containerRequest, error) {
	opts, err := k.GetDeviceRunContainerOptions(ctx, pod, c)
	if err != nil {
		return containerRequest{}, err
	}
	if opts == nil {
		return containerRequest{}, errors.New("the kubelet has no devices for the container")
	}
	if len(opts.Envs)+len(opts.Mounts)+len(opts.Devices) > 0 {
		return containerRequest{}, fmt.Errorf("the container has options other than CDI devices: %+v", opts)
	}
	r := containerRequest{annotations: map[string]string{}}
	for _, d := range opts.CDIDevices {
		r.cdiDevices = append(r.cdiDevices, d.Name)
	}
	for _, a := range opts.Annotations {
		r.annotations[a.Name] = a.Value
	}
	return r, nil
}
