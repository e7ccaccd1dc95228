package agent

import (
	"maps"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/dra"
)

// usedMemory is how much of their limited memory pods use, as the driver last reported it. It is safe for concurrent use,
// and the zero value is ready.
type usedMemory struct {
	mu   sync.Mutex
	pods map[string]podMemory // by UID
}

type podMemory struct {
	bytes map[string]uint64 // by UUID of the GPU
	at    time.Time
}

// record records the use of each GPU by a pod, in bytes by UUID.
func (u *usedMemory) record(podUID string, bytes map[string]uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[string]podMemory{}
	}
	u.pods[podUID] = podMemory{bytes, time.Now()}
}

// prune drops the pods that were recorded before a time: they have ended.
func (u *usedMemory) prune(before time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.pods, func(_ string, p podMemory) bool { return p.at.Before(before) })
}

// sum returns how much of a GPU pods use, in bytes; nil if it is unknown.
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
