package agent

import (
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

func TestUsedMemory(t *testing.T) {
	var u usedMemory
	u.record("a", podMemory{"GPU-0": {limit: 10, used: 1}, "GPU-1": {limit: gpu.MemoryUnlimited, used: 2}})
	u.record("b", podMemory{"GPU-0": {limit: 10, used: 4}})
	pods := []dra.Pod{{UID: "a"}, {UID: "b"}, {UID: "ended"}}
	if got := u.sum(pods, "GPU-0"); got == nil || *got != 5 {
		t.Errorf("used of GPU-0: %v", got)
	}
	if got := u.sum(pods[1:], "GPU-1"); got != nil {
		t.Errorf("used of GPU-1 by others: %d", *got)
	}
	for name, want := range map[string]bool{"GPU-0": true, "GPU-1": false, "GPU-2": false} {
		if m, limited := u.of("a", name); limited != want {
			t.Errorf("limit of pod a on %s: %v, %t", name, m, limited)
		}
	}
	u.record("a", podMemory{"GPU-2": {limit: 10, used: 4}})
	if got := u.sum(pods, "GPU-0"); got == nil || *got != 5 {
		t.Errorf("used of GPU-0 after a record of another GPU: %v", got)
	}
	next := time.Now()
	u.record("b", podMemory{"GPU-0": {limit: 10, used: 8}})
	u.prune(next)
	if got := u.sum(pods, "GPU-0"); got == nil || *got != 8 {
		t.Errorf("used of GPU-0 after a pod has ended: %v", got)
	}
}
