package nvml

import (
	"context"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Reading is what one look at the node's driver gave.
type Reading struct {
	Inventory *gpu.Inventory  // nil when Err is set
	Driver    host.DriverRoot // where the driver was found

	// Err says why there is no inventory. A *host.NoDriverError means
	// that the node has no driver, which is a state, not a failure.
	Err error
}

// Config says where the driver is looked for.
type Config struct {
	Node       host.Root
	DriverRoot string // the node's path of the only root to look at; empty: the known places
	Library    string // the node's path of NVML; empty: found in the driver root

	// Retry is how long Run waits before it looks again while there is no
	// driver or no GPU.
	Retry time.Duration
}

// Read finds the driver and reads its GPUs once.
func Read(cfg Config) Reading {
	root, err := host.FindDriver(cfg.Node, cfg.DriverRoot, cfg.Library)
	if err != nil {
		return Reading{Err: err}
	}
	inv, err := Discover(cfg.Node, root.LocalPath(root.NVML))
	return Reading{Inventory: inv, Driver: root, Err: err}
}

// Run yields a reading at once, another whenever reload delivers a config,
// which it follows from then on, and, while there is no GPU to offer, one
// every cfg.Retry. It returns when ctx ends, after the call into the driver
// that may be under way.
func Run(ctx context.Context, cfg Config, reload <-chan Config, yield func(Reading)) {
	for {
		reading := Read(cfg)
		yield(reading)
		var again <-chan time.Time
		if reading.Err != nil || len(reading.Inventory.GPUs) == 0 {
			again = time.After(cfg.Retry)
		}
		select {
		case <-ctx.Done():
			return
		case cfg = <-reload:
		case <-again:
		}
	}
}
