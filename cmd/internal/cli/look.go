package cli

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Look holds the flags of every command that looks at the host.
type Look struct {
	hostRoot            directory
	DriverRoot, Library string // of the node; empty: found
}

// Register adds the flags to those of a command.
func (l *Look) Register(flags *pflag.FlagSet) {
	l.hostRoot = "/"
	flags.Var(&l.hostRoot, "host-root", "where this process sees the node's root; /proc, /sys, /dev and the driver are read below it")
	flags.StringVar(&l.DriverRoot, "driver-root", "", "the node's path of the driver's root (default: the known places are tried)")
	flags.StringVar(&l.Library, "nvml-library", "", "the node's path of libnvidia-ml.so.1 (default: found in the driver root)")
}

// Node is the root of the node's files.
func (l *Look) Node() host.Root { return host.NewRoot(string(l.hostRoot)) }

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
