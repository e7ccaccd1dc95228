package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// driver is the machine's NVIDIA driver or a simulated one.
type driver struct {
	gpus      int // number of GPUs
	simulated bool
}

func findDriver() driver {
	gpus, _ := filepath.Glob("/proc/driver/nvidia/gpus/*") // the pattern is well formed
	if len(gpus) > 0 {
		return driver{gpus: len(gpus)}
	}
	return driver{gpus: len(simdriver.H100x8().GPUs), simulated: true}
}

func (d driver) String() string {
	if d.simulated {
		return fmt.Sprintf("a simulated driver with %d H100 (this machine has no NVIDIA driver)", d.gpus)
	}
	return fmt.Sprintf("this machine's NVIDIA driver with %d GPUs", d.gpus)
}

// request returns the number of GPUs that the pod requests.
func (d driver) request() int { return min(2, d.gpus) }

func (d driver) prepare(_ context.Context, b *box.Box) error {
	if !d.simulated {
		return nil
	}
	_, err := simdriver.Install(b.Root(), simdriver.H100x8())
	return err
}
