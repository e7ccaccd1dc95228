package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// step is an input to the tracker and the expected fault after it.
type step struct {
	after   time.Duration // since the previous step
	observe func(t *health.Tracker, at time.Time)
	message string // contained in the fault's message; empty if healthy
}

const uuid = "GPU-a"

func xid(code int) func(*health.Tracker, time.Time) {
	return func(t *health.Tracker, at time.Time) { t.Event(uuid, code, at) }
}

func probe(p health.Probe) func(*health.Tracker, time.Time) {
	return func(t *health.Tracker, at time.Time) { t.Probe(uuid, p, at) }
}

func recovery(r health.Recovery) health.Probe { return health.Probe{Recovery: &r} }

func uncorrected(n uint64) health.Probe { return health.Probe{Uncorrected: &n} }

func unresponsive(t *health.Tracker, at time.Time) {
	t.Unresponsive(uuid, gpu.Fault{Code: gpu.FaultUnresponsive, Message: "the driver worker hangs"}, at)
}

func gone(t *health.Tracker, at time.Time)     { t.Gone(uuid, gpu.Gone(), at) }
func returned(t *health.Tracker, at time.Time) { t.Returned(uuid, at) }

func unreadable(t *health.Tracker, at time.Time) {
	t.Gone(uuid, gpu.Fault{Code: gpu.FaultUnreadable, Message: "GPU is lost", Remedy: gpu.RemedyKernelLog}, at)
}

func TestTracker(t *testing.T) {
	pass := probe(health.Probe{})
	for _, tc := range []struct {
		name   string
		policy health.Policy
		steps  []step
	}{
		{"application error has no effect", health.Policy{}, []step{
			{0, xid(31), ""},
			{0, xid(13), ""},
		}},
		{"unknown XID recovers after a quiet period", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{30 * time.Second, pass, "XID 9999"},
			{30 * time.Second, pass, ""},
		}},
		{"another XID restarts the quiet period", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{50 * time.Second, xid(9999), "XID 9999"},
			{50 * time.Second, pass, "XID 9999"},
			{10 * time.Second, pass, ""},
		}},
		{"no recovery while probes fail", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{time.Minute, probe(health.Probe{Failed: "no answer"}), "no answer; XID 9999"},
			{59 * time.Second, pass, "no answer; XID 9999"},
			{time.Second, pass, ""},
		}},
		{"quiet period does not clear a reset fault", health.Policy{}, []step{
			{0, xid(48), "XID 48"},
			{time.Hour, pass, "XID 48"},
			{time.Hour, pass, "XID 48"},
		}},
		{"reset detected by the recovery action", health.Policy{}, []step{
			{0, xid(48), "XID 48"},
			{time.Second, probe(recovery(health.RecoveryReset)), "XID 48"},
			{time.Hour, probe(recovery(health.RecoveryReset)), "XID 48"},
			{time.Second, probe(recovery(health.RecoveryNone)), ""},
		}},
		{"reset fault cleared after a quiet period without recovery action", health.Policy{}, []step{
			{0, xid(48), "XID 48"},
			{time.Second, probe(recovery(health.RecoveryNone)), "XID 48"},
			{time.Minute, probe(recovery(health.RecoveryNone)), ""},
		}},
		{"recovery action without XID", health.Policy{}, []step{
			{0, probe(recovery(health.RecoveryDrainAndReset)), "drain and a GPU reset"},
			{time.Hour, probe(recovery(health.RecoveryNone)), ""},
		}},
		{"reset detected by the error count", health.Policy{}, []step{
			{0, probe(uncorrected(0)), ""},
			{0, probe(uncorrected(2)), "2 uncorrectable"},
			{time.Hour, probe(uncorrected(2)), "2 uncorrectable"},
			{0, probe(uncorrected(0)), ""},
		}},
		{"reset that leaves a recovery action", health.Policy{}, []step{
			{0, probe(health.Probe{Recovery: new(health.RecoveryReboot), Uncorrected: new(uint64(2))}), "a reboot"},
			{time.Second, probe(health.Probe{Recovery: new(health.RecoveryReboot), Uncorrected: new(uint64(0))}), "a reboot"},
			{time.Second, probe(health.Probe{Recovery: new(health.RecoveryNone), Uncorrected: new(uint64(0))}), ""},
		}},
		{"reset that leaves a pending repair", health.Policy{}, []step{
			{0, probe(health.Probe{RepairPending: true, Uncorrected: new(uint64(2))}), "2 uncorrectable"},
			{time.Second, probe(health.Probe{RepairPending: true, Uncorrected: new(uint64(0))}), "remapping is pending"},
			{time.Second, probe(health.Probe{Uncorrected: new(uint64(0))}), ""},
		}},
		{"applied repair does not clear errors", health.Policy{}, []step{
			{0, probe(health.Probe{RepairPending: true, Uncorrected: new(uint64(2))}), "2 uncorrectable"},
			{time.Second, probe(uncorrected(2)), "2 uncorrectable"},
		}},
		{"errors from before the start", health.Policy{}, []step{
			{0, probe(uncorrected(7)), "7 uncorrectable"},
		}},
		{"reset applies a pending repair", health.Policy{}, []step{
			{0, probe(health.Probe{RepairPending: true}), "remapping is pending"},
			{time.Hour, probe(health.Probe{RepairPending: true}), "remapping is pending"},
			{time.Second, pass, ""},
		}},
		{"GPU off the bus returns", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{0, gone, "gone"},
			{time.Hour, returned, ""},
		}},
		{"an XID explains why a GPU is unreadable", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{0, unreadable, "XID 79: GPU has fallen off the bus; GPU is lost"},
			{time.Second, unreadable, "XID 79: GPU has fallen off the bus; GPU is lost"},
			{time.Hour, returned, ""},
		}},
		{"an unreadable GPU is gone later", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{0, unreadable, "fallen off the bus"},
			{0, gone, "gone"},
		}},
		{"unreadable GPU", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{0, unreadable, "GPU is lost"},
		}},
		{"an unreadable GPU keeps a reset fault", health.Policy{}, []step{
			{0, xid(119), "XID 119"},
			{0, unreadable, "GPU is lost; XID 119"},
			{time.Hour, returned, "XID 119"},
			{time.Second, pass, "XID 119"},
			{time.Minute, pass, ""},
		}},
		{"an unreadable GPU with errors keeps a reset fault until it is reset", health.Policy{}, []step{
			{0, probe(uncorrected(2)), "2 uncorrectable"},
			{0, unreadable, "GPU is lost"},
			{time.Hour, returned, "2 uncorrectable"},
			{time.Hour, probe(uncorrected(2)), "2 uncorrectable"},
			{time.Second, probe(uncorrected(0)), ""},
		}},
		{"a GPU that was gone was reset", health.Policy{}, []step{
			{0, xid(119), "XID 119"},
			{0, gone, "gone"},
			{0, returned, ""},
		}},
		{"GPU off the bus must respond for a quiet period", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{time.Hour, pass, "fallen off the bus"},
			{time.Minute, pass, ""},
		}},
		{"successful probes do not clear a fatal fault", health.Policy{}, []step{
			{0, xid(54), "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
		}},
		{"lost GPU responds again", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{0, probe(health.Probe{Failed: "lost"}), "fallen off the bus"},
			{time.Hour, pass, "fallen off the bus"},
			{time.Minute, pass, ""},
		}},
		{"worker failure does not imply that the GPU was unreachable", health.Policy{}, []step{
			{0, xid(54), "auxiliary power"},
			{time.Second, unresponsive, "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
		}},
		{"worker failure makes a GPU unhealthy for the quiet period", health.Policy{}, []step{
			{0, unresponsive, "the driver worker hangs"},
			{time.Second, pass, "the driver worker hangs"},
			{time.Minute, pass, ""},
		}},
		{"recovery of the IMEX domain is no fault", health.Policy{}, []step{
			{0, probe(recovery(health.RecoveryIMEXDomain)), ""},
		}},
		{"failed row remapping does not recover", health.Policy{}, []step{
			{0, probe(health.Probe{RowsFailed: true}), "no spare"},
			{time.Hour, probe(health.Probe{RowsFailed: true}), "no spare"},
		}},
		{"messages of all faults, most severe first", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{0, xid(48), "XID 48: double-bit ECC error; XID 9999"},
		}},
		{"policy", health.Policy{Ignore: []int{48}, Fatal: []int{31}}, []step{
			{0, xid(48), ""},
			{0, xid(31), "XID 31"},
			{time.Hour, pass, "XID 31"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := &health.Tracker{Policy: tc.policy, Quiet: time.Minute}
			now := time.Unix(1e9, 0)
			var since time.Time
			for i, s := range tc.steps {
				now = now.Add(s.after)
				s.observe(tracker, now)
				got := tracker.Fault(uuid)
				if (s.message == "") != got.None() || !strings.Contains(got.Message, s.message) {
					t.Fatalf("step %d: message %q, want %q", i, got.Message, s.message)
				}
				if got.None() {
					since = time.Time{}
					continue
				}
				if since.IsZero() {
					since = now
				}
				if got.Remedy == "" || !got.Since.Equal(since) {
					t.Fatalf("step %d: %+v, want since %s", i, got, since)
				}
			}
			if other := tracker.Fault("GPU-b"); !other.None() {
				t.Errorf("another GPU has the fault %+v", other)
			}
		})
	}
}

// The remedy of a reset fault must describe what clears it: the recovery action if the driver reports it, else a reset.
func TestRemedyOfResetFault(t *testing.T) {
	for name, tc := range map[string]struct {
		probe  *health.Probe // after XID 48; nil: none yet
		remedy string        // contained in the remedy
		clears bool          // without a reset, after a quiet period with the same probe
	}{
		"no probe yet":                    {nil, "reset", false},
		"recovery action not supported":   {&health.Probe{}, "reset", false},
		"no recovery action required":     {new(recovery(health.RecoveryNone)), "no recovery action for 1m0s", true},
		"the driver requires a reset":     {new(recovery(health.RecoveryReset)), "reset", false},
		"the driver requires a reboot":    {new(recovery(health.RecoveryReboot)), "reboot", false},
		"the driver requires a bus reset": {new(recovery(health.RecoveryBusReset)), "bus", false},
	} {
		tracker := &health.Tracker{Quiet: time.Minute}
		now := time.Unix(1e9, 0)
		tracker.Event(uuid, 48, now)
		if tc.probe != nil {
			tracker.Probe(uuid, *tc.probe, now.Add(time.Second))
		}
		if got := tracker.Fault(uuid).Remedy; !strings.Contains(got, tc.remedy) {
			t.Errorf("%s: got the remedy %q, want %q", name, got, tc.remedy)
		}
		if tc.probe == nil {
			continue
		}
		tracker.Probe(uuid, *tc.probe, now.Add(2*time.Minute))
		if cleared := tracker.Fault(uuid).None(); cleared != tc.clears {
			t.Errorf("%s: fault cleared: %t, want %t", name, cleared, tc.clears)
		}
	}
}

func TestCatalog(t *testing.T) {
	last := 0
	for _, x := range health.Catalog() {
		if x.Code <= last {
			t.Errorf("XID %d is listed after %d", x.Code, last)
		}
		last = x.Code
		if got := (health.Policy{}).Class(x.Code); got != x.Class || x.Text == "" {
			t.Errorf("XID %d: %s, %q", x.Code, got, x.Text)
		}
	}
}

// A more severe XID than before makes a fault worse, and others do not, so that a flood of them causes no reconciles.
func TestWorseXIDs(t *testing.T) {
	tracker := health.Tracker{Policy: health.Policy{Fatal: []int{200}}}
	for i, tc := range []struct {
		xid   int
		worse bool
	}{{13, false}, {9999, true}, {9998, false}, {95, true}, {9999, false}, {119, false}, {200, true}, {79, false}, {95, false}} {
		if _, worse := tracker.Event(uuid, tc.xid, time.Unix(0, 0)); worse != tc.worse {
			t.Errorf("event %d, XID %d: worse %t", i, tc.xid, worse)
		}
	}
}
