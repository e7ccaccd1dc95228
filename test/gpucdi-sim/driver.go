package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// A version becomes part of file names.
var validVersion = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,4}){1,2}$`)

func (s sim) driver() *cobra.Command {
	driver := &cobra.Command{
		Use: "driver", Short: "Upgrade, unload or load the driver",
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	driver.AddCommand(
		&cobra.Command{
			Use: "upgrade [VERSION]", Short: "Replace the driver with another version (default: the next one)",
			Example: "  gpucdi-sim driver upgrade\n  gpucdi-sim driver upgrade 590.44.01",
			Args:    checkArgs(cobra.MaximumNArgs(1)),
			RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 && !validVersion.MatchString(args[0]) {
					return usagef("invalid driver version %q, want one such as 590.44.01", args[0])
				}
				return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) {
					before := d.State().Version
					version := next(before)
					if len(args) > 0 {
						version = args[0]
					}
					return fmt.Sprintf("driver %s, was %s", version, before), d.Upgrade(version)
				})
			},
		},
		&cobra.Command{
			Use: "unload", Short: "Unload the kernel module: device nodes disappear",
			Args: checkArgs(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) { return "driver unloaded", d.Unload() })
			},
		},
		&cobra.Command{
			Use: "load", Short: "Load the kernel module",
			Args: checkArgs(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) { return "driver loaded", d.Load() })
			},
		},
	)
	return driver
}

// next returns the version after a valid one: 580.95.06 for 580.95.05.
func next(version string) string {
	dot := strings.LastIndex(version, ".")
	last := version[dot+1:]
	n, _ := strconv.Atoi(last) // a valid version ends in digits
	return fmt.Sprintf("%s.%0*d", version[:dot], len(last), n+1)
}

func (s sim) reset() *cobra.Command {
	return &cobra.Command{
		Use: "reset", Short: "Restore the initial GPUs and driver version",
		Args: checkArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) {
				if err := d.Upgrade(original.Version); err != nil {
					return "", err
				}
				return fmt.Sprintf("driver %s, %d GPUs", original.Version, len(original.GPUs)),
					d.Update(func(state *simdriver.State) error {
						// Event sets identify events by their sequence numbers, which must not restart.
						*state = simdriver.State{Version: state.Version, CUDA: original.CUDA, GPUs: original.GPUs, Events: state.Events}
						return nil
					})
			})
		},
	}
}
