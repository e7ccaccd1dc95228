package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpucdi/gpucdi/internal/host"
)

// hostFlags are the flags of every command that inspects the host.
type hostFlags struct {
	hostRoot            directory
	driverRoot, library string // paths on the node; empty: detected
}

// register adds the flags to a command.
func (f *hostFlags) register(flags *pflag.FlagSet) {
	f.hostRoot = "/"
	flags.Var(&f.hostRoot, "host-root", "directory where the root file system of the node is mounted; /proc, /sys, /dev and the driver are read below it")
	flags.StringVar(&f.driverRoot, "driver-root", "", "driver root, a path on the node (default: the first known location that has a driver)")
	flags.StringVar(&f.library, "nvml-library", "", "libnvidia-ml.so.1, a path on the node (default: found in the driver root)")
}

// root returns the root of the node's files.
func (f *hostFlags) root() host.Root { return host.NewRoot(string(f.hostRoot)) }

// directory is the value of a flag that requires an existing directory. With a mistyped --host-root, a node
// would appear to have no driver.
type directory string

func (d *directory) String() string { return string(*d) }
func (d *directory) Type() string   { return "string" }

func (d *directory) Set(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", name)
	}
	*d = directory(name)
	return err
}
