package cdi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// foreignDelay is how long changes of other specs are collected. Each call to changed leads to a
// check of the whole directory, and other software writes specs by the hundred.
const foreignDelay = 250 * time.Millisecond

// Watch calls changed whenever anybody, this process included, has changed the spec, another one
// in its directory or the directory itself, until ctx ends. It makes the directory if it is
// missing. changed must not block.
func (f *File) Watch(ctx context.Context, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the CDI directory: %w", err)
	}
	defer watcher.Close()
	dir := filepath.Dir(f.Path)
	for {
		// A watch ends with its directory. Something may have changed before the next one.
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("making the CDI directory: %w", err)
		}
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("watching the CDI directory %s: %w", dir, err)
		}
		changed()
		if err := f.follow(ctx, watcher, changed); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// follow returns when the directory is gone or ctx has ended.
func (f *File) follow(ctx context.Context, watcher *fsnotify.Watcher, changed func()) error {
	var foreign <-chan time.Time // nil: no change of another spec is pending
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-foreign:
			foreign = nil
			changed()
		case err := <-watcher.Errors:
			// Events were lost. changed covers them all.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching the CDI directory: %w", err)
			}
			changed()
		case event := <-watcher.Events:
			switch {
			case event.Name == f.Path:
				changed()
			case isSpec(event.Name) && foreign == nil:
				foreign = time.After(foreignDelay)
			case event.Name == filepath.Dir(f.Path):
				return nil
			}
		}
	}
}
