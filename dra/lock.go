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

// lock acquires the lock of a UID. It waits until no other call holds it, and returns an error if ctx ends before.
func (l *uidLocks) lock(ctx context.Context, uid string) error {
	for ctx.Err() == nil {
		if l.tryLock(uid) {
			return nil
		}
		l.mu.Lock()
		holder, held := l.held[uid]
		l.mu.Unlock()
		if !held {
			continue // released meanwhile
		}
		select {
		case <-holder:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// tryLock reports whether it got the lock of a UID, without waiting.
func (l *uidLocks) tryLock(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.held[uid]; held {
		return false
	}
	if l.held == nil {
		l.held = map[string]chan struct{}{}
	}
	l.held[uid] = make(chan struct{})
	return true
}

func (l *uidLocks) unlock(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[uid])
	delete(l.held, uid)
}
