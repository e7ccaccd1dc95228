package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollInterval is how often the directory is looked at while nothing of it
// can be watched.
const pollInterval = time.Second

// watch leaves word in changed whenever a socket that matters may have come
// or gone, until ctx ends. Who reads it looks for himself: words may be false,
// and several changes may leave only one.
func (p *Plugin) watch(ctx context.Context, changed chan<- struct{}) error {
	var reported string
	for ctx.Err() == nil {
		err := p.follow(ctx, changed)
		notify(changed)
		if err == nil {
			continue
		}
		if err.Error() != reported {
			reported = err.Error()
			p.log.Warn("device-plugin directory is polled until it can be watched", "dir", p.cfg.Dir, "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// follow watches the directory until another takes its place or ctx ends. It
// returns an error when it cannot.
func (p *Plugin) follow(ctx context.Context, changed chan<- struct{}) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("starting a watch, see sysctl fs.inotify: %w", err)
	}
	defer watcher.Close()
	// Only the parent tells at once that a directory is gone: as long as a
	// process listens on a socket in it, the kernel keeps its inode.
	noParent := watcher.Add(filepath.Dir(p.cfg.Dir))
	if err := watcher.Add(p.cfg.Dir); err != nil && noParent != nil {
		return err
	}
	notify(changed) // for what happened before
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Errors: // events were lost
			notify(changed)
		case event, open := <-watcher.Events:
			switch {
			case !open:
				return errors.New("the watch ended")
			case !event.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename):
			case event.Name == p.cfg.Dir:
				return nil
			case p.matters(filepath.Base(event.Name)):
				notify(changed)
			}
		}
	}
}

// matters leaves out the kubelet's checkpoint, which changes with every pod.
func (p *Plugin) matters(name string) bool {
	return name == filepath.Base(p.kubeletSocket()) || p.ours(name)
}
