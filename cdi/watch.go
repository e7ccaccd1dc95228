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

// foreignDelay coalesces changes of foreign specs. Each call to changed causes a check of the whole directory, and some
// tools write hundreds of specs.
const foreignDelay = 250 * time.Millisecond

// Watch calls changed initially, and after each change of the spec, of other specs in the directory, or of the
// directory itself, including changes by this process, until ctx is done. It creates the directory if it is missing.
// changed must not block. Watch returns an error if it cannot create or watch the directory.
func (f *File) Watch(ctx context.Context, changed func()) error {
	for ctx.Err() == nil {
		if err := f.watchDir(ctx, changed); err != nil {
			return err
		}
	}
	return nil
}

// watchDir watches the directory until the directory itself changes, for example is removed, or until ctx is done.
func (f *File) watchDir(ctx context.Context, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the CDI directory: %w", err)
	}
	defer watcher.Close()
	dir := filepath.Dir(f.Path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("creating the CDI directory: %w", err)
	}
	// Only the parent reports the removal of the directory immediately: the kernel keeps its inode while a process has it
	// open.
	for _, watched := range []string{filepath.Dir(dir), dir} {
		if err := watcher.Add(watched); err != nil {
			return fmt.Errorf("watching the CDI directory %s: adding a watch of %s: %w", dir, watched, err)
		}
	}
	changed() // for changes before the watch
	return f.watchEvents(ctx, watcher, changed)
}

// watchEvents returns when the directory itself changes, for example is removed, or when ctx is done.
func (f *File) watchEvents(ctx context.Context, watcher *fsnotify.Watcher, changed func()) error {
	var foreign <-chan time.Time // nil: no change of a foreign spec is pending
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-foreign:
			foreign = nil
			changed()
		case err := <-watcher.Errors:
			// Events were lost. One call covers all of them.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching the CDI directory: %w", err)
			}
			changed()
		case event := <-watcher.Events:
			switch {
			case event.Name == f.Path:
				changed()
			case event.Name == filepath.Dir(f.Path):
				return nil
			case filepath.Dir(event.Name) == filepath.Dir(f.Path) && isSpec(event.Name) && foreign == nil:
				foreign = time.After(foreignDelay)
			}
		}
	}
}
