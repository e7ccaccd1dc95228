package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// look holds the flags of every command that looks at the host.
type look struct {
	hostRoot            directory
	driverRoot, library string
}

func (l *look) register(flags *pflag.FlagSet) {
	l.hostRoot = "/"
	flags.Var(&l.hostRoot, "host-root", "where this process sees the node's root; /proc, /sys, /dev and the driver are read below it")
	flags.StringVar(&l.driverRoot, "driver-root", "", "the node's path of the driver's root (default: the known places are tried)")
	flags.StringVar(&l.library, "nvml-library", "", "the node's path of libnvidia-ml.so.1 (default: found in the driver root)")
}

func (l *look) node() host.Root { return host.NewRoot(string(l.hostRoot)) }

// read finds the driver and reads its GPUs once; see driver.Read.
func (l *look) read(ctx context.Context, meanwhile func(host.DriverRoot)) (driver.Reading, error) {
	worker, err := findWorker()
	if err != nil {
		return driver.Reading{}, err
	}
	reading := driver.Read(ctx, driver.Config{Node: l.node(), DriverRoot: l.driverRoot, Library: l.library, Worker: worker}, meanwhile)
	return reading, reading.Err
}

// directory is the value of a flag that names one. Without it a root that is mistyped looks like a
// node without a driver.
type directory string

func (d *directory) String() string { return string(*d) }
func (d *directory) Type() string   { return "string" }

func (d *directory) Set(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory", name)
	}
	*d = directory(name)
	return err
}
