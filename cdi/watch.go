package cdi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Watch calls changed whenever a spec in the file's directory, or the directory
// itself, was changed by anybody, its owner included, until ctx ends. The
// directory is made when it is missing. changed must not block.
func (f *File) Watch(ctx context.Context, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the CDI directory: %w", err)
	}
	defer watcher.Close()
	dir := filepath.Dir(f.Path)
	for {
		// A watch ends with its directory: begin anew, and look once in case
		// something changed in between.
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
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			// Events were lost: whatever they were, looking again covers them.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching the CDI directory: %w", err)
			}
			changed()
		case event := <-watcher.Events:
			switch {
			case isSpec(event.Name):
				changed()
			case event.Name == filepath.Dir(f.Path):
				return nil
			}
		}
	}
}
