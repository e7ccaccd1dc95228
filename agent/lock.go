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
	// lockInterval is how often a waiting agent tries to lock it. After the other agent exits, the kubelet has no
	// healthy device until the lock succeeds.
	lockInterval = 10 * time.Millisecond
	// lockWaitingInterval is how often a waiting agent reports that it waits.
	lockWaitingInterval = time.Minute
)

// lockState waits until no other agent has the lock of the state directory, or ctx ends. Several agents can wait for
// the same one, for example when a rollout is superseded by another: only one of them gets the lock. The kernel
// releases it when the process ends, however it does. waiting is called once a minute.
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
