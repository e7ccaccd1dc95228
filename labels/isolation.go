package labels

import (
	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// The labels with the weakest isolation of the node's devices. GPU Feature Discovery has no such labels.
const (
	MemoryIsolation  = "gpucdi.dev/memory-isolation"
	ComputeIsolation = "gpucdi.dev/compute-isolation"
)

// setIsolationLabels sets the isolation labels, unless all devices are excluded.
func setIsolationLabels(l map[string]string, listed []gpu.GPU, policy allocator.Policy) {
	weakest, _ := policy.WeakestIsolation(&gpu.Inventory{GPUs: listed})
	if weakest != (allocator.Isolation{}) {
		l[MemoryIsolation], l[ComputeIsolation] = string(weakest.Memory), string(weakest.Compute)
	}
}
