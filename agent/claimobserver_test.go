package agent

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// A claim that waits for devices is reported with the latest reason, until the call for it ends.
func TestWaitingClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(nil, nil)
		m.EnableDRA(func() uint64 { return 0 }, nil)
		o := &claimObserver{metrics: m}
		wait := func(uid, reason string) {
			o.Waiting(dra.Outcome{UID: uid, Namespace: "default", Name: uid, Refusal: dra.RefusedHeld, Err: errors.New(reason)})
		}
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
	})
}
