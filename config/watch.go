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
	// settled is how long a file must not have changed before it is read: one that is
	// being written has half of its keys.
	settled = 300 * time.Millisecond
	// settledWithin bounds that wait: a file that changes all the time is read all the same.
	settledWithin = 3 * time.Second
)

// swapped is what changes in the directory of a ConfigMap: a link, which the
// files beside it lead through.
const swapped = "..data"

// Watch calls changed when the file at path may have changed since Watch was
// called, until ctx ends. It returns an error when the file's directory is missing,
// removed or replaced; call it again then.
func Watch(ctx context.Context, path string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the config: %w", err)
	}
	defer watcher.Close()
	if path, err = filepath.Abs(path); err != nil { // as events have it
		return fmt.Errorf("watching the config: %w", err)
	}
	dir := filepath.Dir(path)
	// The parent reports that a link in the directory's place leads elsewhere. Where it
	// cannot be watched, all else is seen.
	_ = watcher.Add(filepath.Dir(dir))
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("watching the directory of the config, %s: %w", dir, err)
	}
	d := debounce{changed: changed, timer: time.NewTimer(settled), since: time.Now()}
	defer d.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.timer.C:
			d.settle()
		case err := <-watcher.Errors:
			// Lost events are covered by reading the file again.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watching the config: %w", err)
			}
			d.touch()
		case event := <-watcher.Events:
			switch {
			case event.Name == dir && event.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename):
				return fmt.Errorf("watching the config: its directory %s was removed or replaced", dir)
			case event.Name == path, event.Name == filepath.Join(dir, swapped):
				d.touch()
			}
		}
	}
}

// debounce reports several changes of a file as one.
type debounce struct {
	changed func()
	timer   *time.Timer
	since   time.Time // of the first change that was not reported; zero: all are
}

// touch puts the report of a change off until the file has settled.
func (d *debounce) touch() {
	if d.since.IsZero() {
		d.since = time.Now()
	}
	d.timer.Reset(min(settled, time.Until(d.since.Add(settledWithin))))
}

func (d *debounce) settle() {
	d.since = time.Time{}
	d.changed()
}
