package driver

import (
	"context"
	"fmt"
	"time"
)

const (
	readCallTimeout = 10 * time.Second
	readTimeout     = time.Minute
)

// Read returns a snapshot of the node's driver. It takes at most one minute; if the driver hangs longer, Err is set.
// Interval and CallTimeout of cfg are ignored.
func Read(ctx context.Context, cfg Config) Snapshot {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	cfg.Interval, cfg.CallTimeout = time.Second, readCallTimeout
	var snapshot *Snapshot
	s := source{cfg: cfg, settings: &Settings{}, yield: func(r Report) {
		if first, is := r.(Snapshot); is && ctx.Err() == nil {
			snapshot = &first
			cancel()
		}
	}}
	s.run(ctx)
	switch {
	case snapshot != nil:
		return *snapshot
	case caller.Err() != nil:
		return Snapshot{Err: fmt.Errorf("reading the driver: %w", context.Cause(caller))}
	}
	return Snapshot{Err: fmt.Errorf("reading the driver: no inventory within %s; check the kernel log for Xid errors, and reboot the node", readTimeout)}
}
