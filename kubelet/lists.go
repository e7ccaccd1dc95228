package kubelet

import (
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// lists is what was sent on the open ListAndWatch streams of a plugin.
type lists struct {
	mu   sync.Mutex
	open []*allocator.List // in the order in which the streams began
}

func (l *lists) begin() *allocator.List {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := &allocator.List{Stream: time.Now()}
	l.open = append(l.open, list)
	return list
}

func (l *lists) sent(list *allocator.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list.Sent = time.Now()
}

func (l *lists) end(list *allocator.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(o *allocator.List) bool { return o == list })
}

func (l *lists) newest() allocator.List {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == 0 {
		return allocator.List{}
	}
	return *l.open[len(l.open)-1]
}
