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

// patience is when a test gives up on something that must happen.
const patience = 60 * time.Second

// newManagerImpl is what NewManagerImpl calls with the fixed path of the
// kubelet's socket.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(klog.Logger, string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

// kubelet is the part of a kubelet that deals with device plugins, at work on
// a directory.
type kubelet struct {
	*devicemanager.ManagerImpl
	dir    string
	lister *holders // tells who holds what, unless a test serves another one

	mutex sync.Mutex
	pods  []*v1.Pod
}

// startKubelet starts a kubelet for the machine's NUMA nodes. It takes up what
// an earlier one in the directory has checkpointed; pods are those that run.
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
	k.lister = &holders{k: k}
	serveLister(t, dir, k.lister)
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := k.Start(klog.Background(), k.activePods, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) stop() { _ = k.Stop(klog.Background()) }

// restart ends the kubelet and starts another in its place.
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

// counts waits until the node has at least that many GPUs, and can give out exactly so
// many of them, and returns how long that took. It may have more: what nobody can hold any more stays
// listed for a minute, see TestReleasedDevicesAreUnlisted.
func (k *kubelet) counts(t *testing.T, capacity, allocatable int64) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		has, gives := k.capacity()
		got := [2]int64{quantity(has), quantity(gives)}
		if got[0] >= capacity && got[1] == allocatable {
			return time.Since(start)
		}
		if time.Since(start) > patience {
			t.Fatalf("the kubelet has %d GPUs and can allocate %d, want %d and %d", got[0], got[1], capacity, allocatable)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// quantity is -1 for a resource that the kubelet does not know.
func quantity(list v1.ResourceList) int64 {
	q, known := list[gpuResource]
	if !known {
		return -1
	}
	return q.Value()
}

// newPod makes a pod of one container with so many GPUs.
func newPod(name string, gpus int) *v1.Pod { return podWith(name, gpuResource, gpus) }

// podWith makes a pod of one container with so many of a resource.
func podWith(name string, of v1.ResourceName, count int) *v1.Pod {
	list := v1.ResourceList{of: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-of-" + name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Resources: v1.ResourceRequirements{Limits: list, Requests: list},
		}}},
	}
}

// admit does what the kubelet does when a pod comes: it allocates its devices.
func (k *kubelet) admit(pod *v1.Pod) error {
	k.mutex.Lock()
	k.pods = append(k.pods, pod)
	k.mutex.Unlock()
	err := k.allocate(pod)
	if err != nil {
		k.forget(pod)
	}
	return err
}

// allocate allocates the devices of a pod's containers, init containers first.
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

// forget does what the kubelet does when a pod is gone.
func (k *kubelet) forget(pod *v1.Pod) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.pods = slices.DeleteFunc(k.pods, func(p *v1.Pod) bool { return p.UID == pod.UID })
}

// request is what the kubelet asks of the runtime for a container.
type request struct {
	cdiDevices  []string
	annotations map[string]string
}

// start does what the kubelet does when it starts the pod's container, be it
// for the first time.
func (k *kubelet) start(ctx context.Context, pod *v1.Pod) (request, error) {
	return k.startContainer(ctx, pod, &pod.Spec.Containers[0])
}

func (k *kubelet) startContainer(ctx context.Context, pod *v1.Pod, c *v1.Container) (request, error) {
	opts, err := k.GetDeviceRunContainerOptions(ctx, pod, c)
	if err != nil {
		return request{}, err
	}
	if opts == nil {
		return request{}, errors.New("the kubelet holds nothing for the container")
	}
	if len(opts.Envs)+len(opts.Mounts)+len(opts.Devices) > 0 {
		return request{}, fmt.Errorf("the container is given more than CDI names: %+v", opts)
	}
	r := request{annotations: map[string]string{}}
	for _, d := range opts.CDIDevices {
		r.cdiDevices = append(r.cdiDevices, d.Name)
	}
	for _, a := range opts.Annotations {
		r.annotations[a.Name] = a.Value
	}
	return r, nil
}
