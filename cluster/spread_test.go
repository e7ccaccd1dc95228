package cluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// The slots of a client are an interval apart, on whole seconds after the first use.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var sum time.Duration
		for range 100 {
			c := &Client{}
			first := c.untilSlot(0)
			if first <= 0 || first > DefaultSpread {
				t.Errorf("first slot after %s", first)
			}
			sum += first
			time.Sleep(first)
			if next := c.untilSlot(0); next != DefaultSpread {
				t.Errorf("next slot after %s", next)
			}
			time.Sleep(time.Minute)
			if next := c.untilSlot(5 * time.Minute); next != 2*DefaultSpread-time.Minute {
				t.Errorf("first slot at least 5m away: after %s", next)
			}
		}
		if sum < 100*DefaultSpread/4 || sum > 100*DefaultSpread*3/4 {
			t.Errorf("mean of the first slots %s", sum/100)
		}
		if time.Since(begin)%time.Second != 0 {
			t.Error("slots are not on whole seconds")
		}
	})
}
