//go:build !kubernetes1.37

package dramanager

import v1 "k8s.io/api/core/v1"

// This method wraps a DRA manager method whose signature changed in Kubernetes 1.37. go.mod pins 1.36,
// kubernetes-1.37.mod pins 1.37.

func (k *kubelet) updateHealth(pod *v1.Pod, status *v1.PodStatus) {
	k.UpdateAllocatedResourcesStatus(pod, status)
}
