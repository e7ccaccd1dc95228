package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

// mountsInterval is the interval between checks of the mounted directories: their removal causes no inotify event.
const mountsInterval = 10 * time.Second

// watchMounts returns an error if a directory of the node that is mounted in the agent's container was removed. Only a
// restart of the container mounts the directory that replaces it.
func (a *Agent) watchMounts(ctx context.Context) error {
	ticker := time.NewTicker(mountsInterval)
	defer ticker.Stop()
	for {
		for _, dir := range a.cfg.nodeDirs() {
			if host.IsRemoved(dir) {
				return fmt.Errorf("directory mounted at %s was removed from the node; restart the container to mount the new one", dir)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// nodeDirs returns the directories of the node in which the agent reads or writes files, and which other programs may
// remove.
func (c Config) nodeDirs() []string {
	dirs := []string{c.CDIDir, c.StateDir, c.NFDDir}
	for _, name := range []string{"device-plugins", "pod-resources", "plugins", "plugins_registry"} {
		dirs = append(dirs, filepath.Join(c.KubeletDir, name))
	}
	return dirs
}
