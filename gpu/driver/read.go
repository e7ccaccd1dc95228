package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

// What a person who asks once waits for: a call into the driver, and all of
// them together.
const (
	readCallWithin = 10 * time.Second
	readWithin     = time.Minute
)

// Read finds the driver and reads its GPUs once. A driver that does not come
// back is an error of the Reading, after a minute at most; cfg needs no times. While a
// process asks the driver, meanwhile runs, unless it is nil, with the root that the driver
// was found in. What it takes is free as long as the driver takes longer.
func Read(ctx context.Context, cfg Config, meanwhile func(host.DriverRoot)) Reading {
	ctx, enough := context.WithTimeout(ctx, readWithin)
	defer enough()
	cfg.Interval, cfg.CallWithin = time.Second, readCallWithin
	reading := Reading{Err: fmt.Errorf("the driver has told nothing within %s: look for Xid in the kernel log, and reboot the node", readWithin)}
	s := source{cfg: cfg, meanwhile: meanwhile, yield: func(r Report) {
		if first, is := r.(Reading); is && ctx.Err() == nil {
			reading = first
			enough()
		}
	}}
	s.run(ctx)
	return reading
}
