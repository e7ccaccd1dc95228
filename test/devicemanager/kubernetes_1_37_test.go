//go:build kubernetes1.37

package devicemanager

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

func noTopology() topologymanager.Manager { return topologymanager.NewFakeManager(klog.Background()) }

func (k *kubelet) capacity() (has, gives v1.ResourceList) {
	has, gives, _ = k.GetCapacity(klog.Background())
	return has, gives
}

func (k *kubelet) allocatable() devicemanager.ResourceDeviceInstances {
	return k.GetAllocatableDevices(klog.Background())
}

func (k *kubelet) allocateFor(pod *v1.Pod, c *v1.Container) error {
	return k.Allocate(context.Background(), pod, c, lifecycle.AddOperation)
}

// prune drops what pods were allocated that have ended.
func (k *kubelet) prune() { k.UpdateAllocatedDevices(klog.Background()) }

func (k *kubelet) hints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return k.GetTopologyHints(klog.Background(), pod, &pod.Spec.Containers[0], lifecycle.AddOperation)
}
