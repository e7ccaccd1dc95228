package driver

import (
	"context"
	"fmt"
	"time"
)

// What a person who asks once waits for: a call into the driver, and all of
// them together.
const (
	readCallWithin = 10 * time.Second
	readWithin     = time.Minute
)

// Read finds the driver and reads its GPUs once. A hung driver is an error of the Reading, after a minute
// at most. The times of cfg are not used.
func Read(ctx context.Context, cfg Config) Reading {
	ctx, enough := context.WithTimeout(ctx, readWithin)
	defer enough()
	cfg.Interval, cfg.CallWithin = time.Second, readCallWithin
	reading := Reading{Err: fmt.Errorf("the driver has told nothing within %s: look for Xid in the kernel log, and reboot the node", readWithin)}
	s := source{cfg: cfg, yield: func(r Report) {
		if first, is := r.(Reading); is && ctx.Err() == nil {
			reading = first
			enough()
		}
	}}
	s.run(ctx)
	return reading
}
