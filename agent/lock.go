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
	// lockWaitingInterval is how often a waiting agent reports that it waits.
	lockWaitingInterval = time.Minute
)

// lockState waits until it gets the lock of the state directory, or ctx ends. Several agents can wait for the lock, for
// example when a second rollout starts before the first has finished; only one of them gets it. The kernel releases the
// lock when the process ends, even by a crash. While lockState waits, it calls waiting with the path of the lock, first
// immediately and then once a minute.
func lockState(ctx context.Context, dir string, waiting func(path string)) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, stateMode)
	if err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	err = flock(file, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = awaitLock(ctx, file, func() { waiting(path) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// awaitLock locks a file as soon as the other agent has exited. It does not poll, because the kubelet has no healthy
// device from that exit until this agent advertises. If ctx ends first, the caller closes the file, so that a lock that
// is acquired later is released immediately.
func awaitLock(ctx context.Context, file *os.File, waiting func()) error {
	locked := make(chan error, 1)
	go func() { locked <- flock(file, unix.LOCK_EX) }()
	report := time.NewTicker(lockWaitingInterval)
	defer report.Stop()
	for {
		waiting()
		select {
		case err := <-locked:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-report.C:
		}
	}
}

// flock calls flock(2). If the file is closed meanwhile, its descriptor stays open until the call returns.
func flock(file *os.File, how int) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	err = conn.Control(func(fd uintptr) {
		for lockErr = unix.EINTR; errors.Is(lockErr, unix.EINTR); {
			lockErr = unix.Flock(int(fd), how)
		}
	})
	return errors.Join(err, lockErr)
}
