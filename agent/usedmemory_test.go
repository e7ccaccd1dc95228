package agent

import (
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/dra"
)

func TestUsedMemory(t *testing.T) {
	var u usedMemory
	u.record("a", map[string]uint64{"GPU-0": 1, "GPU-1": 2})
	u.record("b", map[string]uint64{"GPU-0": 4})
	pods := []dra.Pod{{UID: "a"}, {UID: "b"}, {UID: "ended"}}
	if got := u.sum(pods, "GPU-0"); got == nil || *got != 5 {
		t.Errorf("used of GPU-0: %v", got)
	}
	if got := u.sum(pods[1:], "GPU-1"); got != nil {
		t.Errorf("used of GPU-1 by others: %d", *got)
	}
	next := time.Now()
	u.record("b", map[string]uint64{"GPU-0": 8})
	u.prune(next)
	if got := u.sum(pods, "GPU-0"); got == nil || *got != 8 {
		t.Errorf("used of GPU-0 after a pod has ended: %v", got)
	}
}
