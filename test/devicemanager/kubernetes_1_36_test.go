//go:build !kubernetes1.37

package devicemanager

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// These functions wrap the kubelet functions whose signatures changed in Kubernetes 1.37. go.mod pins 1.36,
// kubernetes-1.37.mod pins 1.37.

func noTopology() topologymanager.Manager { return topologymanager.NewFakeManager() }

func (k *kubelet) capacity() (capacity, allocatable v1.ResourceList) {
	capacity, allocatable, _ = k.GetCapacity()
	return capacity, allocatable
}

func (k *kubelet) allocatable() devicemanager.ResourceDeviceInstances {
	return k.GetAllocatableDevices()
}

func (k *kubelet) allocateFor(pod *v1.Pod, c *v1.Container) error { return k.Allocate(pod, c) }

// prune frees the devices of pods that are no longer active.
func (k *kubelet) prune() { k.UpdateAllocatedDevices() }

func (k *kubelet) hints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return k.GetTopologyHints(pod, &pod.Spec.Containers[0])
}
