package health_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// Faults from XIDs, and those that only a reset or the return of the GPU clears, survive a restart of the agent. A GPU
// that was reset while no agent ran must recover.
func TestSavedFaults(t *testing.T) {
	none, reset := health.Probe{Recovery: new(health.RecoveryNone)}, health.Probe{Recovery: new(health.RecoveryReset)}
	for _, tc := range []struct {
		name   string
		before []func(*health.Tracker, time.Time)
		after  []step
	}{
		{"transient XID", observed(xid(9999)), []step{
			{0, probe(none), "XID 9999"},
			{time.Minute, probe(none), ""},
		}},
		{"transient XID, then a failed probe", observed(xid(9999), probe(health.Probe{Failed: "unknown error"})), []step{
			{0, probe(none), "XID 9999"},
			{time.Minute, probe(none), ""},
		}},
		{"XID 79, then the GPU responds, then a call hangs", observed(xid(79), probe(health.Probe{Failed: "lost"}), probe(none), unresponsive), []step{
			{0, probe(none), "fallen off the bus"},
			{time.Minute, probe(none), ""},
		}},
		{"failed probe", observed(probe(health.Probe{Failed: "unknown error"})), []step{{0, probe(none), ""}}},
		{"worker failed for all GPUs", observed(func(h *health.Tracker, at time.Time) {
			h.Unresponsive(uuid, gpu.Fault{Code: gpu.FaultDriver, Message: "crashed"}, at)
		}), []step{{0, probe(none), ""}}},
		{"XID 79, then the GPU responds", observed(xid(79), probe(none)), []step{
			{0, probe(none), "fallen off the bus"},
			{time.Minute, probe(none), ""},
		}},
		{"XID 79", observed(xid(79)), []step{
			{0, probe(health.Probe{Failed: "lost"}), "fallen off the bus"},
			{time.Second, probe(none), "fallen off the bus"},
			{time.Minute, probe(none), ""},
		}},
		{"XID 54", observed(xid(54)), []step{
			{0, probe(none), "auxiliary power"},
			{time.Hour, probe(none), "auxiliary power"},
			{0, gone, "gone"},
			{0, returned, ""},
		}},
		{"GPU gone, then it responds", observed(gone), []step{
			{0, probe(none), "gone"},
			{time.Minute, probe(none), ""},
		}},
		{"XID 48, then the driver requires a reset", observed(xid(48), probe(reset)), []step{
			{0, probe(reset), "XID 48"},
			{time.Hour, probe(reset), "XID 48"},
			{time.Second, probe(none), ""},
		}},
		{"XID 48, reset while no agent ran", observed(xid(48), probe(reset)), []step{{time.Second, probe(none), ""}}},
		{"XID 48 with an error count", observed(xid(48), probe(uncorrected(2))), []step{
			{0, probe(uncorrected(2)), "XID 48"},
			{time.Hour, probe(uncorrected(2)), "XID 48"},
			{0, probe(uncorrected(0)), ""},
		}},
		{"XID 48, reset not detectable", observed(xid(48), probe(health.Probe{})), []step{
			{0, probe(health.Probe{}), "XID 48"},
			{time.Minute, probe(health.Probe{}), ""},
		}},
		{"XID 48 repeated", observed(xid(48), probe(health.Probe{})), []step{
			{0, xid(48), "XID 48"},
			{time.Hour, probe(health.Probe{}), "XID 48"},
		}},
		{"XID 48 after the saved one was cleared", observed(xid(48), probe(health.Probe{})), []step{
			{time.Minute, probe(health.Probe{}), ""},
			{0, xid(48), "XID 48"},
			{time.Hour, probe(health.Probe{}), "XID 48"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			earlier := &health.Tracker{Quiet: time.Minute}
			for _, observe := range tc.before {
				observe(earlier, now)
			}
			since := earlier.Fault(uuid).Since
			text, err := json.Marshal(earlier.Save())
			if err != nil {
				t.Fatal(err)
			}
			saved := map[string]health.Saved{}
			if err := json.Unmarshal(text, &saved); err != nil {
				t.Fatal(err)
			}
			now = now.Add(10 * time.Second)
			later := &health.Tracker{Quiet: time.Minute}
			later.Restore(saved, now)
			if got := later.Fault(uuid); !got.None() && !got.Since.Equal(since) {
				t.Errorf("the fault has the time %s, want %s", got.Since, since)
			}
			for i, s := range tc.after {
				now = now.Add(s.after)
				s.observe(later, now)
				if got := later.Fault(uuid).Message; (s.message == "") != (got == "") || !strings.Contains(got, s.message) {
					t.Fatalf("step %d: %q, want %q", i, got, s.message)
				}
			}
		})
	}
}

func observed(inputs ...func(*health.Tracker, time.Time)) []func(*health.Tracker, time.Time) {
	return inputs
}
