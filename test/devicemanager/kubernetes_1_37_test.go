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

func (k *kubelet) capacity() (capacity, allocatable v1.ResourceList) {
	capacity, allocatable, _ = k.GetCapacity(klog.Background())
	return capacity, allocatable
}

func (k *kubelet) allocatable() devicemanager.ResourceDeviceInstances {
	return k.GetAllocatableDevices(klog.Background())
}

func (k *kubelet) allocateFor(pod *v1.Pod, c *v1.Container) error {
	return k.Allocate(context.Background(), pod, c, lifecycle.AddOperation)
}

// prune frees the devices of pods that are no longer active.
func (k *kubelet) prune() { k.UpdateAllocatedDevices(klog.Background()) }

func (k *kubelet) hints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return k.GetTopologyHints(klog.Background(), pod, &pod.Spec.Containers[0], lifecycle.AddOperation)
}
