package kubelet

import (
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// sentLists records when each open ListAndWatch stream of a plugin was opened and last written to.
type sentLists struct {
	mu   sync.Mutex
	open []*allocator.List // in the order in which the streams were opened
}

func (l *sentLists) begin() *allocator.List {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := &allocator.List{Stream: time.Now()}
	l.open = append(l.open, list)
	return list
}

func (l *sentLists) sent(list *allocator.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list.Sent = time.Now()
}

func (l *sentLists) end(list *allocator.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(o *allocator.List) bool { return o == list })
}

// newest returns the times of the stream that was opened last; zero if none is open.
func (l *sentLists) newest() allocator.List {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == 0 {
		return allocator.List{}
	}
	return *l.open[len(l.open)-1]
}
