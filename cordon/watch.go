package cordon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/sockets"
)

// checkInterval is the interval of checks without an event. A mount over the directory causes no event.
const checkInterval = 10 * time.Second

// Watch creates the directory, and calls yield with the result of List, and again whenever it has changed. It returns
// nil when ctx ends or the directory was removed, and an error if the directory cannot be created or listed. After an
// error the last cordons remain valid.
func (s Store) Watch(ctx context.Context, log *slog.Logger, yield func(all map[string]Cordon, problem error)) error {
	// Without the directory, Watch would return at once.
	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return fmt.Errorf("watching cordons: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := make(chan struct{}, 1)
	watcher := sockets.Watcher{Dir: s.dir, Changed: changed, Log: log, Relevant: func(name string) bool { _, ok := uuidOf(name); return ok }}
	go watcher.Run(ctx)
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	var last map[string]Cordon
	var logged string
	for {
		all, problem := s.List()
		if all == nil {
			return problem
		}
		text := ""
		if problem != nil {
			text = gpu.OneLine(problem)
		}
		if last == nil || text != logged || !maps.Equal(all, last) {
			yield(all, problem)
		}
		last, logged = all, text
		if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-check.C:
		}
	}
}
