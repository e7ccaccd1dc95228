package config

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long a file must be unchanged before it is reported, since a write may be in progress.
	settleTime = 300 * time.Millisecond
	// maxSettleTime bounds the delay of the report for a file that changes continuously.
	maxSettleTime = 3 * time.Second
)

// dataLink is the symlink that the kubelet replaces when it updates a ConfigMap volume.
const dataLink = "..data"

// Watch calls changed when the file at path may have changed, and once at the start, each time after settleTime. It
// returns nil when ctx ends, and an error if watching fails, for example because the directory of the file is missing,
// removed or replaced. After an error the caller calls Watch again.
func Watch(ctx context.Context, path string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching config: %w", err)
	}
	defer watcher.Close()
	if path, err = filepath.Abs(path); err != nil { // makes the names in events absolute
		return fmt.Errorf("watching config: %w", err)
	}
	dir := filepath.Dir(path)
	// Events of the parent report that the directory is replaced, for example if it is a symlink. If the parent cannot
	// be watched, only this goes undetected.
	_ = watcher.Add(filepath.Dir(dir))
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("watching config directory %s: %w", dir, err)
	}
	d := debounce{changed: changed, timer: time.NewTimer(settleTime), since: time.Now()}
	defer d.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.timer.C:
			d.fire()
		case err := <-watcher.Errors:
			// After an overflow, events of the file may have been lost.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching config: %w", err)
			}
			d.restart()
		case event := <-watcher.Events:
			switch {
			case event.Name == dir && event.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename):
				return fmt.Errorf("watching config: directory %s was removed or replaced", dir)
			case event.Name == path, event.Name == filepath.Join(dir, dataLink):
				d.restart()
			}
		}
	}
}

// debounce merges changes that follow each other closely into one call of changed.
type debounce struct {
	changed func()
	timer   *time.Timer
	since   time.Time // time of the first pending change; zero if none
}

// restart delays the call until the file has settled.
func (d *debounce) restart() {
	if d.since.IsZero() {
		d.since = time.Now()
	}
	d.timer.Reset(min(settleTime, time.Until(d.since.Add(maxSettleTime))))
}

func (d *debounce) fire() {
	d.since = time.Time{}
	d.changed()
}
