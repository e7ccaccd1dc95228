package dra

import (
	"context"
	"sync"
)

// uidLocks serializes the calls for each claim, and the memory limits of each pod. The zero value is ready.
type uidLocks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // by UID; closed by unlock
}

// lock waits until no other call holds the lock of a UID, or ctx ends.
func (l *uidLocks) lock(ctx context.Context, uid string) error {
	for ctx.Err() == nil {
		l.mu.Lock()
		holder, held := l.held[uid]
		if !held {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			l.held[uid] = make(chan struct{})
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-holder:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

func (l *uidLocks) unlock(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[uid])
	delete(l.held, uid)
}
