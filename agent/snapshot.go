package agent

import (
	"errors"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// snapshot is the state of the node after a step of the loop. A published snapshot is immutable. Status, labels
// and metrics are functions of it; Events and log lines are the difference between two.
type snapshot struct {
	driver  *driver.Snapshot          // the latest; nil before the first
	known   *gpu.Inventory            // the latest inventory and missing devices that may still be held
	labels  update[map[string]string] // labels of the Node as last received, and why they may be stale
	runtime update[runtime.Info]
	running running
	audited runtime.Audit // of the running containers
	cordons cordons
	config  settings

	plan    *plan                 // of the latest reconcile
	offers  []*allocator.Resource // as last advertised; nil before the first advertisement
	plugins []*kubelet.Plugin     // in start order
	claims  *claims               // nil if DRA is disabled
}

// errNotListed is the error in snapshot.running before the first list.
var errNotListed = errors.New("running containers not listed yet")

func newSnapshot() *snapshot {
	return &snapshot{
		known:   &gpu.Inventory{},
		labels:  update[map[string]string]{err: errors.New("node labels not received yet")},
		runtime: update[runtime.Info]{err: errors.New("not detected yet")},
		running: running{err: errNotListed},
		plan:    &plan{deviceFaults: &gpu.Inventory{}, inventory: &gpu.Inventory{}},
	}
}
