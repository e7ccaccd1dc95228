package dra

import (
	"testing"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// A cordon never evicts pods.
func TestTaintOfCordon(t *testing.T) {
	if got := taint(gpu.FaultCordoned, cluster.NoExecute).Effect; got != cluster.NoSchedule {
		t.Errorf("effect of a cordon is %s", got)
	}
	if got := taint(gpu.FaultECC, cluster.NoExecute).Effect; got != cluster.NoExecute {
		t.Errorf("effect of a fault is %s", got)
	}
}
