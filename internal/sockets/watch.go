package sockets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollInterval is the interval between checks of the directory while it cannot be watched.
const pollInterval = time.Second

// Watcher reports that files were created in a directory or removed from it.
type Watcher struct {
	Dir      string                 // clean; may be missing or replaced at any time
	Relevant func(name string) bool // whether to report a file with that name
	Changed  chan<- struct{}        // must have a buffer of one
	Log      *slog.Logger
}

// Run sends to Changed whenever a relevant file may have been created or removed, until ctx ends. Notifications may be
// spurious, and several changes may be merged into one.
func (w Watcher) Run(ctx context.Context) {
	var logged string
	for ctx.Err() == nil {
		err := w.watch(ctx)
		Notify(w.Changed)
		if err == nil {
			continue
		}
		if err.Error() != logged {
			logged = err.Error()
			w.Log.Warn("directory not watched, polling", "dir", w.Dir, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

// watch watches the directory until it is replaced or ctx ends. It returns an error if the watch fails.
func (w Watcher) watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("starting a watch: %w; check sysctl fs.inotify", err)
	}
	defer watcher.Close()
	// The watch of the parent reports the creation of the directory, and its removal immediately. The watch of the
	// directory reports the removal only after all sockets in it are closed; until then, the kernel keeps its inode.
	if err := add(watcher, filepath.Dir(w.Dir)); err != nil {
		return err
	}
	if err := add(watcher, w.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	Notify(w.Changed) // for changes before the watch
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Errors: // events were lost
			Notify(w.Changed)
		case event, open := <-watcher.Events:
			switch {
			case !open:
				return errors.New("watch closed")
			case !event.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename):
			case event.Name == w.Dir:
				return nil
			case w.Relevant(filepath.Base(event.Name)):
				Notify(w.Changed)
			}
		}
	}
}

func add(watcher *fsnotify.Watcher, dir string) error {
	err := watcher.Add(dir)
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("watching %s: %w; increase sysctl fs.inotify.max_user_watches", dir, err)
	}
	if err != nil {
		return fmt.Errorf("watching %s: %w", dir, err)
	}
	return nil
}

// Notify sends to a channel with a buffer of one, unless a value is already pending.
func Notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
