package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/metrics"
)

// The latest refusal of a claim is kept until a call for it succeeds.
func TestRefusals(t *testing.T) {
	m := metrics.New(nil, nil)
	m.EnableDRA(func() uint64 { return 0 }, nil)
	o := &claimObserver{metrics: m}
	refuse := func(uid, reason string) {
		o.Prepared(dra.Outcome{UID: uid, Name: uid, Refusal: dra.RefusedHeld, Err: errors.New(reason)})
	}
	refuse("a", "first")
	refuse("b", "other")
	refuse("a", "second\nline")
	if got := o.refused(); len(got) != 2 || got[1].Message != "second; line" || got[1].Reason != "held" || got[1].At.IsZero() {
		t.Errorf("got %+v", got)
	}
	o.Prepared(dra.Outcome{UID: "a"})
	if got := o.refused(); len(got) != 1 || got[0].UID != "b" {
		t.Errorf("after a success: got %+v", got)
	}
	for i := range 2 * maxRefusals {
		refuse(fmt.Sprint(i), "held")
	}
	if got := o.refused(); len(got) != maxRefusals || got[0].UID != fmt.Sprint(maxRefusals) {
		t.Errorf("got %d refusals, the first of %s", len(got), got[0].UID)
	}
}

// An Event of the claim names the parts of GPUs whose compute time is not limited.
func TestNotEnforced(t *testing.T) {
	part := func(id string, cores uint64, percentage int) dra.Device {
		return dra.Device{ID: id, Amount: allocator.Amount{Cores: cores, Memory: 1 << 30}, MPSPercentage: percentage}
	}
	monitor := part("GPU-5", 10, 0)
	monitor.Admin = true
	devices := []dra.Device{part("GPU-1", 25, 0), part("GPU-2", 100, 0), part("GPU-3", 25, 25), {ID: "GPU-4"}, monitor, part("GPU-6", 50, 0)}
	if got := notEnforced(devices); !strings.HasPrefix(got, "25 cores of GPU-1, 50 cores of GPU-6 booked, but not enforced: ") {
		t.Errorf("got %q", got)
	}
	if got := notEnforced(devices[1:5]); got != "" {
		t.Errorf("nothing to enforce: got %q", got)
	}
}

// A refusal has an Event of the claim, unless it repeats the last one or the call was canceled.
func TestEventsOfRefusals(t *testing.T) {
	m := metrics.New(nil, nil)
	m.EnableDRA(func() uint64 { return 0 }, nil)
	o := &claimObserver{metrics: m}
	for _, tc := range []struct {
		err  string
		kind dra.Refusal
		want string
	}{
		{"held by\nfirst", dra.RefusedHeld, "held by; first"},
		{"held by\nfirst", dra.RefusedHeld, ""},
		{"held by second", dra.RefusedHeld, "held by second"},
		{"stopping", dra.RefusedCanceled, ""},
		{"", "", ""},
		{"held by second", dra.RefusedHeld, "held by second"},
	} {
		outcome := dra.Outcome{Namespace: "default", Name: "a", UID: "uid-a", Refusal: tc.kind}
		if tc.err != "" {
			outcome.Err = errors.New(tc.err)
		}
		want := cluster.Event{}
		if tc.want != "" {
			want = cluster.Event{Type: cluster.Warning, Reason: "ClaimNotPrepared", Message: tc.want, Claim: cluster.ClaimRef{Namespace: "default", Name: "a", UID: "uid-a"}}
		}
		if got := o.event(outcome); got != want {
			t.Errorf("%q: got %+v, want %+v", tc.err, got, want)
		}
		o.Prepared(outcome)
	}
}

// A claim that waits for devices is reported with the latest reason, until the call for it ends. The metric counts each
// call once.
func TestWaitingClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(nil, nil)
		m.EnableDRA(func() uint64 { return 0 }, nil)
		o := &claimObserver{metrics: m}
		wait := func(uid, reason string) {
			o.Waiting(dra.Outcome{UID: uid, Namespace: "default", Name: uid, Refusal: dra.RefusedHeld, Err: errors.New(reason)})
		}
		waits := func(want int) {
			t.Helper()
			response := httptest.NewRecorder()
			m.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if line := fmt.Sprintf("\ngpucdi_dra_waits_total %d\n", want); !strings.Contains(response.Body.String(), line) {
				t.Errorf("the metrics lack %q", line)
			}
		}
		waits(0)
		start := time.Now()
		wait("a", "first")
		time.Sleep(time.Second)
		wait("b", "other")
		wait("a", "second\nline")
		if got := o.awaiting(); len(got) != 2 || got[0].Name != "a" || got[0].Message != "second; line" || !got[0].Since.Equal(start) || got[1].UID != "b" {
			t.Errorf("got %+v", got)
		}
		o.Prepared(dra.Outcome{UID: "a"})
		o.Prepared(dra.Outcome{UID: "b", Err: errors.New("held")})
		if got := o.awaiting(); len(got) != 0 {
			t.Errorf("after the calls: got %+v", got)
		}
		waits(2)
		wait("a", "again")
		waits(3)
	})
}
