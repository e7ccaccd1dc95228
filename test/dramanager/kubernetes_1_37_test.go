//go:build kubernetes1.37

package dramanager

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

func (k *kubelet) updateHealth(pod *v1.Pod, status *v1.PodStatus) {
	k.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
}
