package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

func TestEvent(t *testing.T) {
	known := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Product: "NVIDIA H100"}, {UUID: "GPU-b", Product: "NVIDIA A100"}}}
	one := []allocator.Device{{ID: "GPU-a", GPU: "GPU-a", Index: "5"}}
	several := append(one, allocator.Device{ID: "MIG-c", GPU: "GPU-b", Index: "6:1"})
	for _, tc := range []struct {
		reason  string
		devices []allocator.Device
		driver  error
		want    apiserver.Event
	}{
		{
			"", one, nil,
			apiserver.Event{Type: apiserver.Normal, Reason: "GPUHealthy", Message: "GPU 5 (NVIDIA H100, GPU-a) is healthy again"},
		},
		{
			"XID 48: memory had an error that cannot be corrected", one, nil,
			apiserver.Event{Type: apiserver.Warning, Reason: "GPUUnhealthy",
				Message: "GPU 5 (NVIDIA H100, GPU-a) is unhealthy: XID 48: memory had an error that cannot be corrected; recovers after a GPU reset (nvidia-smi --gpu-reset) or a reboot of the node"},
		},
		{
			"the driver is gone", several[1:], errors.New("gone"),
			apiserver.Event{Type: apiserver.Warning, Reason: "GPUDriverFailed", Message: "GPU 6:1 (NVIDIA A100, MIG-c) is unhealthy: the driver is gone"},
		},
		{
			"", several, nil,
			apiserver.Event{Type: apiserver.Normal, Reason: "GPUHealthy", Message: "GPUs 5, 6:1 are healthy again"},
		},
		{
			gpu.FaultGone, []allocator.Device{{ID: "GPU-a", GPU: "GPU-a", Index: "5", State: allocator.StateDraining, Replicas: []string{"GPU-a::3"}}}, nil,
			apiserver.Event{Type: apiserver.Warning, Reason: "GPUUnhealthy", Message: "replicas of GPU 5 (NVIDIA H100, GPU-a) are unhealthy: " + gpu.FaultGone},
		},
	} {
		n := &node{health: &health.Tracker{}, known: known, driverErr: tc.driver}
		n.health.Event("GPU-a", 48, time.Now())
		if got := n.event(tc.reason, tc.devices); got != tc.want {
			t.Errorf("got  %+v\nwant %+v", got, tc.want)
		}
	}
}
