package config

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settled is how long a file must have been left alone until it is read: one
// that is just being written is a file with half of its keys.
const settled = 300 * time.Millisecond

// swapped is what changes in the directory of a ConfigMap: a link, which the
// files beside it lead through.
const swapped = "..data"

// Watch calls changed when the file at path may have changed since Watch was
// called, until ctx ends.
func Watch(ctx context.Context, path string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the config: %w", err)
	}
	defer watcher.Close()
	path = filepath.Clean(path)
	dir := filepath.Dir(path)
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("watching the directory of the config, %s: %w", dir, err)
	}
	timer := time.NewTimer(settled)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			changed()
		case err := <-watcher.Errors:
			// Events were lost: whatever they were, looking again covers them.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching the config: %w", err)
			}
			timer.Reset(settled)
		case event := <-watcher.Events:
			switch {
			case event.Name == dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				return fmt.Errorf("watching the config: its directory %s is gone", dir)
			case event.Name == path, filepath.Base(event.Name) == swapped:
				timer.Reset(settled)
			}
		}
	}
}
