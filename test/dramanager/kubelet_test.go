package dramanager

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// timeout limits how long a test waits for a condition.
const timeout = 60 * time.Second

// kubelet runs the kubelet's DRA manager and plugin manager in a directory.
type kubelet struct {
	*testing.T
	*dra.Manager
	stop func()
}

// startKubelet starts a kubelet. It restores the checkpoint in dir, if any.
func startKubelet(t *testing.T, dir string, api *fake.Clientset) *kubelet {
	t.Helper()
	manager, err := dra.NewManager(klog.Background(), api, dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	// While sources are not ready, the manager does not unprepare the claims of inactive pods. Here no pod is active.
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return false })
	node := func(context.Context) (*v1.Node, error) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, nil
	}
	if err := manager.Start(ctx, func() []*v1.Pod { return nil }, node, ready); err != nil {
		t.Fatal(err)
	}
	plugins := pluginmanager.NewPluginManager(filepath.Join(dir, "plugins_registry"), &record.FakeRecorder{})
	plugins.AddHandler(registerapi.DRAPlugin, manager.GetWatcherHandler())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		plugins.Run(ctx, ready, ctx.Done())
	}()
	k := &kubelet{T: t, Manager: manager}
	k.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		disconnect(manager.GetWatcherHandler())
	})
	t.Cleanup(k.stop)
	return k
}

// disconnect closes the connections to all plugins, as the exit of the kubelet does.
func disconnect(handler any) { handler.(interface{ Stop() }).Stop() }

// prepare prepares the claims of a pod, once the driver is registered, and returns the CDI devices of its container.
func (k *kubelet) prepare(pod *v1.Pod) []string {
	k.Helper()
	k.eventually("preparation", func() error { return k.PrepareResources(k.Context(), pod) })
	return k.devices(pod)
}

// devices returns the CDI devices of the pod's container.
func (k *kubelet) devices(pod *v1.Pod) (names []string) {
	k.Helper()
	info, err := k.GetResources(pod, &pod.Spec.Containers[0])
	if err != nil {
		k.Fatal(err)
	}
	for _, d := range info.CDIDevices {
		names = append(names, d.Name)
	}
	return names
}

// checkPrepare prepares the claims of a pod, and checks that it then has exactly the CDI devices want.
func (k *kubelet) checkPrepare(pod *v1.Pod, want ...string) {
	k.Helper()
	if got := k.prepare(pod); !slices.Equal(got, want) {
		k.Errorf("pod %s has devices %v, want %v", pod.Name, got, want)
	}
}

// unprepare unprepares the claims of a pod, once the driver is registered.
func (k *kubelet) unprepare(pod *v1.Pod) {
	k.Helper()
	k.eventually("unpreparation", func() error { return k.UnprepareResources(k.Context(), pod) })
}

// health returns the health of the devices in the status of a pod.
func (k *kubelet) health(pod *v1.Pod) (health []v1.ResourceHealth) {
	status := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
	k.updateHealth(pod, &status)
	for _, s := range status.ContainerStatuses[0].AllocatedResourcesStatus {
		health = append(health, s.Resources...)
	}
	return health
}

// eventually repeats a call until it succeeds.
func (k *kubelet) eventually(what string, call func() error) {
	k.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if time.Since(start) > timeout {
			k.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

const (
	driverName = "gpu.nvidia.com"
	nodeName   = "node"
)

// newClaim returns a claim with an allocated GPU, reserved for pods.
func newClaim(name, device string, pods ...*v1.Pod) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-claim-" + name)},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driverName, Pool: nodeName, Device: device}},
		}}},
	}
	for _, p := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	return claim
}

// newPod returns a pod with a container that uses a claim.
func newPod(name, claim string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-of-" + name)},
		Spec: v1.PodSpec{
			ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
			Containers: []v1.Container{{
				Name: "main", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}
}
