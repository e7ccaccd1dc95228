package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockName is the file in the state directory that the serving agent has locked.
	lockName = "agent.lock"
	// lockInterval is how often a waiting agent tries to lock it. From the exit of the other agent until then, the
	// kubelet has no healthy device.
	lockInterval = 10 * time.Millisecond
	// lockWaitingInterval is how often a waiting agent reports that it waits.
	lockWaitingInterval = time.Minute
)

// lockState waits until it gets the lock of the state directory, or ctx ends. Several agents can wait for the lock, for
// example when another rollout supersedes one: only one of them gets it. The kernel releases the lock when the process
// ends, even by a crash. While lockState waits, it calls waiting with the path of the lock, first immediately and then
// once a minute.
func lockState(ctx context.Context, dir string, waiting func(path string)) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, stateMode)
	if err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	retry := time.NewTicker(lockInterval)
	defer retry.Stop()
	for reported := (time.Time{}); ; {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}
		if time.Since(reported) >= lockWaitingInterval {
			waiting(path)
			reported = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-retry.C:
		}
	}
}
