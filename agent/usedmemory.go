package agent

import (
	"maps"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

// usedMemory has the memory limits and compute ceilings of pods, as last set or read, and the memory that they use, as last
// reported by the driver. It is safe for concurrent use, and its zero value is empty.
type usedMemory struct {
	mu   sync.Mutex
	pods map[string]podMemory // by UID
}

type podMemory map[string]memoryUse // by UUID of the GPU

// memoryUse is what a pod can use and uses of a GPU.
type memoryUse struct {
	limit   uint64 // of the memory, in bytes; gpu.MemoryUnlimited if it could not be limited
	used    uint64 // memory, in bytes
	ceiling int    // of the compute time, for the sum of its replicas, in percent; 0 if it is not limited
	at      time.Time
}

// record records what a pod can use and uses of some GPUs.
func (u *usedMemory) record(podUID string, gpus podMemory) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[string]podMemory{}
	}
	if u.pods[podUID] == nil {
		u.pods[podUID] = podMemory{}
	}
	for uuid, m := range gpus {
		m.at = time.Now()
		u.pods[podUID][uuid] = m
	}
}

// prune drops what was last recorded before a time, such as that of pods that have ended.
func (u *usedMemory) prune(before time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.pods, func(_ string, p podMemory) bool {
		maps.DeleteFunc(p, func(_ string, m memoryUse) bool { return m.at.Before(before) })
		return len(p) == 0
	})
}

// sum returns the memory of a GPU that these pods use, in bytes; nil if it is unknown for all of them.
func (u *usedMemory) sum(pods []dra.Pod, uuid string) (total *uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range pods {
		if m, known := u.pods[p.UID][uuid]; known {
			if total == nil {
				total = new(uint64)
			}
			*total += m.used
		}
	}
	return total
}

// of returns what a pod can use and uses of a GPU; false if its memory is not limited, or if that is unknown.
func (u *usedMemory) of(podUID, uuid string) (m memoryUse, limited bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m, known := u.pods[podUID][uuid]
	return m, known && m.limit != gpu.MemoryUnlimited
}
