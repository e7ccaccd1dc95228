package agent

import (
	"errors"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// snapshot is the state of the node after a step of the loop. What is published is immutable: status, labels
// and metrics are functions of it, Events and log lines are the difference from the one before.
type snapshot struct {
	reading *driver.Reading           // the latest; nil until the first
	known   *gpu.Inventory            // all that was read since the start and may still be held
	labels  update[map[string]string] // the Node's, as last received, and why they may be stale
	runtime update[runtime.Info]
	config  settings

	plan    *plan                 // of the latest reconcile
	offers  []*allocator.Resource // as last advertised; nil before that
	plugins []*kubelet.Plugin     // in the order they were started
}

func newSnapshot() *snapshot {
	return &snapshot{
		known:   &gpu.Inventory{},
		labels:  update[map[string]string]{err: errors.New("the node's labels were not received yet")},
		runtime: update[runtime.Info]{err: errors.New("not asked yet")},
		plan:    &plan{own: &gpu.Inventory{}, inventory: &gpu.Inventory{}},
	}
}
