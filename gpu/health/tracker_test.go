package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// step is one observation and what the GPU's health is to be after it.
type step struct {
	after   time.Duration // since the step before
	observe func(t *health.Tracker, at time.Time)
	reason  string // part of it; empty for healthy
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

func TestTracker(t *testing.T) {
	pass := probe(health.Probe{})
	for _, tc := range []struct {
		name   string
		policy health.Policy
		steps  []step
	}{
		{"an application's error changes nothing", health.Policy{}, []step{
			{0, xid(31), ""},
			{0, xid(13), ""},
		}},
		{"an unknown XID heals after a quiet period", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{30 * time.Second, pass, "XID 9999"},
			{30 * time.Second, pass, ""},
		}},
		{"another one starts the quiet period anew", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{50 * time.Second, xid(9999), "XID 9999"},
			{50 * time.Second, pass, "XID 9999"},
			{10 * time.Second, pass, ""},
		}},
		{"quiet alone heals nothing while probes fail", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{time.Minute, probe(health.Probe{Failed: "no answer"}), "no answer"},
			{59 * time.Second, pass, "no answer"},
			{time.Second, pass, ""},
		}},
		{"a needed reset does not heal by quiet", health.Policy{}, []step{
			{0, xid(48), "XID 48"},
			{time.Hour, pass, "XID 48"},
			{time.Hour, pass, "XID 48"},
		}},
		{"a reset shows in the recovery field", health.Policy{}, []step{
			{0, xid(48), "XID 48"},
			{time.Second, probe(recovery(health.RecoveryReset)), "XID 48"},
			{time.Hour, probe(recovery(health.RecoveryReset)), "XID 48"},
			{time.Second, probe(recovery(health.RecoveryNone)), ""},
		}},
		{"the driver gets a quiet period to ask for a reset", health.Policy{}, []step{
			{0, xid(48), "XID 48"},
			{time.Second, probe(recovery(health.RecoveryNone)), "XID 48"},
			{time.Minute, probe(recovery(health.RecoveryNone)), ""},
		}},
		{"the recovery field alone is enough", health.Policy{}, []step{
			{0, probe(recovery(health.RecoveryDrainAndReset)), "drain and a GPU reset"},
			{time.Hour, probe(recovery(health.RecoveryNone)), ""},
		}},
		{"a reset shows in the error counter", health.Policy{}, []step{
			{0, probe(uncorrected(0)), ""},
			{0, probe(uncorrected(2)), "2 errors"},
			{time.Hour, probe(uncorrected(2)), "2 errors"},
			{0, probe(uncorrected(0)), ""},
		}},
		{"errors from before the start count", health.Policy{}, []step{
			{0, probe(uncorrected(7)), "7 errors"},
		}},
		{"a GPU off the bus heals when it is back", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{0, gone, "gone"},
			{time.Hour, returned, ""},
		}},
		{"a GPU off the bus that answers has to go on answering", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{time.Hour, pass, "fallen off the bus"},
			{time.Minute, pass, ""},
		}},
		{"a fatal fault does not heal by answers", health.Policy{}, []step{
			{0, xid(54), "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
		}},
		{"a lost GPU heals when it answers again", health.Policy{}, []step{
			{0, xid(79), "fallen off the bus"},
			{0, probe(health.Probe{Failed: "lost"}), "fallen off the bus"},
			{time.Hour, pass, "fallen off the bus"},
			{time.Minute, pass, ""},
		}},
		{"a worker that hangs or crashes is no sign that the GPU was away", health.Policy{}, []step{
			{0, xid(54), "auxiliary power"},
			{time.Second, unresponsive, "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
			{time.Hour, pass, "auxiliary power"},
		}},
		{"a worker that hangs makes a healthy GPU unhealthy for the quiet period", health.Policy{}, []step{
			{0, unresponsive, "the driver worker hangs"},
			{time.Second, pass, "the driver worker hangs"},
			{time.Minute, pass, ""},
		}},
		{"a domain of several nodes that has to be recovered is no fault of the GPU", health.Policy{}, []step{
			{0, probe(recovery(health.RecoveryIMEXDomain)), ""},
		}},
		{"rows that cannot be replaced never heal", health.Policy{}, []step{
			{0, probe(health.Probe{RowsFailed: true}), "no spare"},
			{time.Hour, probe(health.Probe{RowsFailed: true}), "no spare"},
		}},
		{"all that is wrong is told, the worst first", health.Policy{}, []step{
			{0, xid(9999), "XID 9999"},
			{0, xid(48), "XID 48: memory had an error that cannot be corrected; XID 9999"},
		}},
		{"the policy decides", health.Policy{Ignore: []int{48}, Fatal: []int{31}}, []step{
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
				if (s.reason == "") != got.None() || !strings.Contains(got.Message, s.reason) {
					t.Fatalf("step %d: reason %q, want %q", i, got.Message, s.reason)
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
				t.Errorf("another GPU is %+v", other)
			}
		})
	}
}

// What a fault names as its remedy is what clears it: where the driver reports which recovery
// action a GPU requires, that decides; elsewhere only a reset does.
func TestTheRemedyIsWhatClears(t *testing.T) {
	for name, tc := range map[string]struct {
		probe  *health.Probe // after XID 48; nil: none yet
		remedy string        // part of it
		clears bool          // without a reset, after a quiet period with the same probe
	}{
		"no probe yet":                             {nil, "reset", false},
		"the driver reports no action":             {&health.Probe{}, "reset", false},
		"the driver reports that none is required": {new(recovery(health.RecoveryNone)), "1m0s in which the driver requires no recovery action", true},
		"the driver requires a reset":              {new(recovery(health.RecoveryReset)), "reset", false},
		"the driver requires a reboot":             {new(recovery(health.RecoveryReboot)), "reboot", false},
		"the driver requires a bus reset":          {new(recovery(health.RecoveryBusReset)), "bus", false},
	} {
		tracker := &health.Tracker{Quiet: time.Minute}
		now := time.Unix(1e9, 0)
		tracker.Event(uuid, 48, now)
		if tc.probe != nil {
			tracker.Probe(uuid, *tc.probe, now.Add(time.Second))
		}
		if got := tracker.Fault(uuid).Remedy; !strings.Contains(got, tc.remedy) {
			t.Errorf("%s: the remedy is %q, want %q", name, got, tc.remedy)
		}
		if tc.probe == nil {
			continue
		}
		tracker.Probe(uuid, *tc.probe, now.Add(2*time.Minute))
		if cleared := tracker.Fault(uuid).None(); cleared != tc.clears {
			t.Errorf("%s: the fault has cleared: %t, want %t", name, cleared, tc.clears)
		}
	}
}

func TestXIDsAreInOrderAndClassed(t *testing.T) {
	last := 0
	for _, x := range health.Known() {
		if x.Code <= last {
			t.Errorf("XID %d stands after %d", x.Code, last)
		}
		last = x.Code
		if got := (health.Policy{}).Class(x.Code); got != x.Class || x.Text == "" {
			t.Errorf("XID %d: %s, %q", x.Code, got, x.Text)
		}
	}
}
