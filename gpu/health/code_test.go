package health_test

import (
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// The code is that of the most severe fault, whichever is newer.
func TestCode(t *testing.T) {
	now := time.Now()
	for want, observe := range map[gpu.FaultCode]func(*health.Tracker){
		"xid_79":                func(h *health.Tracker) { h.Event(uuid, 79, now); h.Event(uuid, 9999, now) },
		"xid_54":                func(h *health.Tracker) { h.Event(uuid, 9999, now); h.Event(uuid, 54, now) },
		"xid_9999":              func(h *health.Tracker) { h.Event(uuid, 9999, now) },
		gpu.FaultUnresponsive:   func(h *health.Tracker) { h.Probe(uuid, health.Probe{Failed: "no answer"}, now) },
		gpu.FaultGone:           func(h *health.Tracker) { h.Gone(uuid, gpu.Gone(), now) },
		gpu.FaultECC:            func(h *health.Tracker) { h.Probe(uuid, uncorrected(2), now) },
		gpu.FaultRepairPending:  func(h *health.Tracker) { h.Probe(uuid, health.Probe{RepairPending: true}, now) },
		gpu.FaultRowsFailed:     func(h *health.Tracker) { h.Probe(uuid, health.Probe{RowsFailed: true, RepairPending: true}, now) },
		gpu.FaultRecoveryNeeded: func(h *health.Tracker) { h.Probe(uuid, recovery(health.RecoveryReset), now) },
		"":                      func(h *health.Tracker) { h.Event(uuid, 13, now) },
	} {
		h := health.Tracker{Quiet: time.Minute}
		observe(&h)
		if got := h.Fault(uuid).Code; got != want {
			t.Errorf("got the code %q, want %q", got, want)
		}
	}
}
