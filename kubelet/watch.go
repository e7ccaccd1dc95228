package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollInterval is the interval between checks of the directory while it cannot be watched.
const pollInterval = time.Second

// watch notifies changed whenever the kubelet's socket or one of the plugin's may have been created or removed,
// until ctx ends. Notifications may be spurious, and several changes may be merged into one.
func (p *Plugin) watch(ctx context.Context, changed chan<- struct{}) error {
	var logged string
	for ctx.Err() == nil {
		err := p.watchDir(ctx, changed)
		notify(changed)
		if err == nil {
			continue
		}
		if err.Error() != logged {
			logged = err.Error()
			p.log.Warn("device-plugins directory not watched, polling", "dir", p.cfg.Dir, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// watchDir watches the directory until it is replaced or ctx ends. It returns an error if the watch fails.
func (p *Plugin) watchDir(ctx context.Context, changed chan<- struct{}) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("starting a watch: %w; check sysctl fs.inotify", err)
	}
	defer watcher.Close()
	// Only the parent reports the removal of the directory at once: the kernel keeps its inode as long as a process
	// listens on a socket in it.
	parentErr := watcher.Add(filepath.Dir(p.cfg.Dir))
	if err := watcher.Add(p.cfg.Dir); err != nil && parentErr != nil {
		return err
	}
	notify(changed) // for changes before the watch
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Errors: // events were lost
			notify(changed)
		case event, open := <-watcher.Events:
			switch {
			case !open:
				return errors.New("watch closed")
			case !event.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename):
			case event.Name == p.cfg.Dir:
				return nil
			case p.isRelevant(filepath.Base(event.Name)):
				notify(changed)
			}
		}
	}
}

// isRelevant excludes other files, above all the kubelet's checkpoint, which changes with every pod.
func (p *Plugin) isRelevant(name string) bool {
	return name == kubeletSocketName || p.isOwnSocketName(name)
}
