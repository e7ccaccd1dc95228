package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// A grant leads to a step, which looks for what proves later that it has ended; many lead to one.
func TestAGrantLeadsToAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, triggers := &loop{snapshot: *newSnapshot()}, newTriggers(nil)
		gate := reportedGate{allocator.NewGate(time.Now), triggers.granted}
		began := time.Now()
		for range 100 {
			if err := gate.Allocate("nvidia.com/gpu", nil); err != nil {
				t.Fatal(err)
			}
		}
		if step := l.await(t.Context(), triggers); step == nil || time.Since(began) != grantDelay {
			t.Errorf("a step after %v", time.Since(began))
		}
		if err := gate.Allocate("nvidia.com/gpu", []string{"unknown"}); err == nil || len(triggers.granted) > 0 {
			t.Errorf("a refusal is a grant: %v", err)
		}
	})
}
