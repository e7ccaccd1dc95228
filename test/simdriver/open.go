package simdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stateFile is the file, relative to the root, from which Open reads the state. It is written before the library and
// the files of the kernel module, so that the next Update completes one that was interrupted.
const stateFile = "usr/share/nvidia/simdriver.json"

// Open returns the driver that another process has installed below root. Until Close, other calls of Open for this root
// wait; ctx limits the wait. The process that has installed the driver must no longer change it.
func Open(ctx context.Context, root string) (*Driver, error) {
	d, err := Installer{}.driver(root)
	if err != nil {
		return nil, err
	}
	if d.unlock, err = lock(ctx, root); err != nil {
		return nil, fmt.Errorf("opening the simulated driver: %w", err)
	}
	if err := d.load(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Close lets other processes open the driver, which keeps its state. It has no effect on a Driver from Install.
func (d *Driver) Close() {
	if d.unlock != nil {
		d.unlock()
	}
}

// load reads the state, and completes an interrupted upgrade.
func (d *Driver) load() error {
	text, err := os.ReadFile(d.files.path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no simulated driver is installed below %s", d.files.root)
	}
	if err != nil {
		return fmt.Errorf("reading the state of the simulated driver: %w", err)
	}
	if err := json.Unmarshal(text, &d.state); err != nil {
		return fmt.Errorf("parsing the state of the simulated driver in %s: %w", d.files.path(stateFile), err)
	}
	if d.state.Replaces == "" {
		return nil
	}
	return d.upgrade(d.state)
}

// save writes the state file.
func (k kernel) save(s *State) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := replace(k.path(stateFile), text, 0o644); err != nil {
		return fmt.Errorf("saving the state of the simulated driver: %w", err)
	}
	return nil
}

// lock waits for the lock on a root, which the kernel releases when the process ends.
func lock(ctx context.Context, root string) (unlock func(), err error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { dir.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			dir.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			dir.Close()
			return nil, fmt.Errorf("waiting for another process that changes it: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
