//go:build !kubernetes1.37

package devicemanager

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// The calls of the device manager that Kubernetes 1.37 has changed. go.mod has
// the one release, kubernetes-1.37.mod the other.

func noTopology() topologymanager.Manager { return topologymanager.NewFakeManager() }

func (k *kubelet) capacity() (has, gives v1.ResourceList) {
	has, gives, _ = k.GetCapacity()
	return has, gives
}

func (k *kubelet) allocatable() devicemanager.ResourceDeviceInstances {
	return k.GetAllocatableDevices()
}

func (k *kubelet) allocateFor(pod *v1.Pod, c *v1.Container) error { return k.Allocate(pod, c) }

// prune drops what pods were allocated that have ended.
func (k *kubelet) prune() { k.UpdateAllocatedDevices() }

func (k *kubelet) hints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return k.GetTopologyHints(pod, &pod.Spec.Containers[0])
}
