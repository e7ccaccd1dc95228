package main

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// look holds the flags of every command that looks at the host.
type look struct {
	hostRoot, driverRoot, library string
}

func (l *look) register(flags *pflag.FlagSet) {
	flags.StringVar(&l.hostRoot, "host-root", "/", "where this process sees the node's root; /proc, /sys, /dev and the driver are read below it")
	flags.StringVar(&l.driverRoot, "driver-root", "", "the node's path of the driver's root (default: the known places are tried)")
	flags.StringVar(&l.library, "nvml-library", "", "the node's path of libnvidia-ml.so.1 (default: found in the driver root)")
}

func (l *look) node() host.Root { return host.NewRoot(l.hostRoot) }

// read finds the driver and reads its GPUs once.
func (l *look) read(ctx context.Context) (driver.Reading, error) {
	worker, err := findWorker()
	if err != nil {
		return driver.Reading{}, err
	}
	reading := driver.Read(ctx, driver.Config{Node: l.node(), DriverRoot: l.driverRoot, Library: l.library, Worker: worker})
	return reading, reading.Err
}
