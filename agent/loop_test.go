package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// A burst of grants triggers a single step, which schedules the release checks.
func TestGrantTriggersStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, triggers := &loop{snapshot: *newSnapshot()}, newTriggers(nil)
		gate := notifyingGate{allocator.NewGate(time.Now), triggers.granted}
		start := time.Now()
		for range 100 {
			if err := gate.Allocate("nvidia.com/gpu", nil, true); err != nil {
				t.Fatal(err)
			}
		}
		if step := l.await(t.Context(), triggers); step == nil || time.Since(start) != grantDelay {
			t.Errorf("step after %v, want %v", time.Since(start), grantDelay)
		}
		if err := gate.Allocate("nvidia.com/gpu", []string{"unknown"}, true); err == nil || len(triggers.granted) > 0 {
			t.Errorf("refused allocation: error %v, %d notifications, want an error and none", err, len(triggers.granted))
		}
	})
}
