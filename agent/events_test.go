package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

func TestEvent(t *testing.T) {
	one := []gpu.GPU{{UUID: "GPU-a", Index: 5, Product: "NVIDIA H100"}}
	several := append(one, gpu.GPU{UUID: "GPU-b", Index: 6})
	for _, tc := range []struct {
		reason string
		gpus   []gpu.GPU
		driver error
		want   apiserver.Event
	}{
		{
			"", one, nil,
			apiserver.Event{Type: apiserver.Normal, Reason: "GPUHealthy", Message: "GPU 5 (NVIDIA H100, GPU-a) is healthy again"},
		},
		{
			"XID 48: memory had an error that cannot be corrected", one, nil,
			apiserver.Event{Type: apiserver.Warning, Reason: "GPUUnhealthy",
				Message: "GPU 5 (NVIDIA H100, GPU-a) is unhealthy: XID 48: memory had an error that cannot be corrected; it heals by a reset: nvidia-smi --gpu-reset, or a reboot of the node"},
		},
		{
			"the driver is gone", several[1:], errors.New("gone"),
			apiserver.Event{Type: apiserver.Warning, Reason: "GPUDriverFailed", Message: "GPU 6 (, GPU-b) is unhealthy: the driver is gone"},
		},
		{
			"", several, nil,
			apiserver.Event{Type: apiserver.Normal, Reason: "GPUHealthy", Message: "GPUs 5, 6 are healthy again"},
		},
	} {
		n := &node{health: &health.Tracker{}, driverErr: tc.driver}
		n.health.Event("GPU-a", 48, time.Now())
		if got := n.event(tc.reason, tc.gpus); got != tc.want {
			t.Errorf("got  %+v\nwant %+v", got, tc.want)
		}
	}
}
