package host

import (
	"context"
	"errors"
	"sync"
)

// Calls waits for calls that may not return when their context ends: the kernel does not kill a process in
// uninterruptible sleep, for example one that waits for a GPU that hangs. The zero Calls is ready to use, and safe for
// concurrent use.
type Calls struct {
	mu   sync.Mutex
	left map[string]int // number of calls that have not returned although their context has ended, by key
}

// ErrNotExited means that a program was not started, because an earlier one has not exited.
var ErrNotExited = errors.New("an earlier one has not exited; if this persists, find the cause in the kernel log and reboot the node")

// Do returns the result of call, or the cause when ctx ends first. In that case, calls with the same key fail with
// ErrNotExited until call has returned. The caller must not read what call writes unless Do returns nil.
func (c *Calls) Do(ctx context.Context, key string, call func() error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.add(key, 0) > 0:
		return ErrNotExited
	}
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		c.add(key, 1)
		go func() {
			<-done
			c.add(key, -1)
		}()
		return context.Cause(ctx)
	}
}

// add changes the number of calls left for a key, and returns it.
func (c *Calls) add(key string, change int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.left[key] + change
	if n == 0 {
		delete(c.left, key)
		return 0
	}
	if c.left == nil {
		c.left = map[string]int{}
	}
	c.left[key] = n
	return n
}
