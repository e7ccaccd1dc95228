package kubelet

import (
	"errors"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// The kubelet lacks a device of the list that a stream sent long ago. The registration is lost unless another stream
// has sent a list in which that device is unhealthy.
func TestCheckBeforeSend(t *testing.T) {
	for name, replaced := range map[string]bool{"the only stream": false, "another stream has sent a newer list": true} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.PodResources = serveLister(t, &fakeLister{devices: containerDevices(allocator.GPUResource, uuids(0, 1, 2, 3, 4, 6, 7)...)})
			h := &newServer(New(cfg, testLog(t))).health
			h.listed = true
			list := newSnapshot(offer(bothWays)).list
			h.sending(list)
			h.newest.Load().at = time.Now().Add(-2 * settledAfter)
			if replaced {
				h.sending(newSnapshot(offer(bothWays, fault(5, "lost"))).list)
			}
			var lost *lostError
			if err := h.beforeSend(t.Context(), list); errors.As(err, &lost) == replaced {
				t.Errorf("error %v", err)
			}
		})
	}
}
