package agent

import (
	"maps"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

// usedMemory has the limits of the GPU memory of pods and what they use, as last reported by the driver. It is safe for
// concurrent use, and its zero value is empty.
type usedMemory struct {
	mu   sync.Mutex
	pods map[string]podMemory // by UID
}

type podMemory struct {
	gpus map[string]memoryUse // by UUID of the GPU
	at   time.Time
}

// memoryUse is the memory of a GPU that a pod can use and that it uses, in bytes.
type memoryUse struct {
	limit uint64 // gpu.MemoryUnlimited if it could not be limited
	used  uint64
}

// record records how much memory a pod can use and uses, by UUID of the GPU.
func (u *usedMemory) record(podUID string, gpus map[string]memoryUse) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[string]podMemory{}
	}
	u.pods[podUID] = podMemory{gpus, time.Now()}
}

// prune drops pods that were last recorded before a time, such as those that have ended.
func (u *usedMemory) prune(before time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.pods, func(_ string, p podMemory) bool { return p.at.Before(before) })
}

// sum returns the memory of a GPU that these pods use, in bytes; nil if it is unknown for all of them.
func (u *usedMemory) sum(pods []dra.Pod, uuid string) (total *uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range pods {
		if m, known := u.pods[p.UID].gpus[uuid]; known {
			if total == nil {
				total = new(uint64)
			}
			*total += m.used
		}
	}
	return total
}

// of returns the memory of a GPU that a pod can use and uses; false if it has no limit or that is unknown.
func (u *usedMemory) of(podUID, uuid string) (m memoryUse, limited bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m, known := u.pods[podUID].gpus[uuid]
	return m, known && m.limit != gpu.MemoryUnlimited
}
