package agent

import (
	"maps"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/dra"
)

// usedMemory is the GPU memory that pods with a limit use, as last reported by the driver. It is safe for concurrent
// use, and its zero value is empty.
type usedMemory struct {
	mu   sync.Mutex
	pods map[string]podMemory // by UID
}

type podMemory struct {
	bytes map[string]uint64 // by UUID of the GPU
	at    time.Time
}

// record records how much memory a pod uses, in bytes by UUID of the GPU.
func (u *usedMemory) record(podUID string, bytes map[string]uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[string]podMemory{}
	}
	u.pods[podUID] = podMemory{bytes, time.Now()}
}

// prune drops pods that were last recorded before a time, such as those that have ended.
func (u *usedMemory) prune(before time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.pods, func(_ string, p podMemory) bool { return p.at.Before(before) })
}

// sum returns the memory of a GPU that these pods use, in bytes; nil if it is unknown for all of them.
func (u *usedMemory) sum(pods []dra.Pod, gpu string) (total *uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range pods {
		if bytes, known := u.pods[p.UID].bytes[gpu]; known {
			if total == nil {
				total = new(uint64)
			}
			*total += bytes
		}
	}
	return total
}
