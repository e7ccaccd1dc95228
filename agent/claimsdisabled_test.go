package agent

import (
	"slices"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
)

// After DRA was disabled, the devices of prepared claims remain held: the kubelet starts their containers without calling
// a driver.
func TestClaimsOfEarlierDriver(t *testing.T) {
	var disabled *claims
	var o allocator.Observation
	disabled.observe(&o, partResolver{inv: &gpu.Inventory{}}, []kubelet.PreparedClaim{
		{UID: "uid-a", Namespace: "default", Name: "a", Pods: []string{"pod"}, Devices: []kubelet.PreparedDevice{
			{Name: "gpu-0", CDI: []string{"gpucdi.dev/gpu=GPU-0"}},
		}},
		{UID: "uid-b", Devices: []kubelet.PreparedDevice{{Name: "gpu-1", CDI: []string{"k8s.gpu.nvidia.com/device=gpu-1"}}}},
		{UID: "uid-c"},
	})
	if len(o.Claims) != 1 || !slices.Equal(o.Claims[0].Devices, []string{"GPU-0"}) || !slices.Equal(o.Claims[0].Pods, []string{"pod"}) ||
		o.Claims[0].Parts[0].GPU != "GPU-0" {
		t.Errorf("claims %+v", o.Claims)
	}
}
