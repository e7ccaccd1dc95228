package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// original is the driver with which the demo starts.
var original = simdriver.H100x8()

// hangs is the duration of a hanging driver call, far longer than any program waits.
const hangs = 1000 * time.Hour

// findGPU returns a GPU by its minor number or UUID. A removed GPU is an error, an unknown one a usageError.
func findGPU(state simdriver.State, arg string) (simdriver.GPU, error) {
	match := func(g simdriver.GPU) bool { return strconv.Itoa(g.Minor) == arg || g.UUID == arg }
	if i := slices.IndexFunc(state.GPUs, match); i >= 0 {
		return state.GPUs[i], nil
	}
	if i := slices.IndexFunc(original.GPUs, match); i >= 0 {
		return simdriver.GPU{}, fmt.Errorf("GPU %s is removed; return it with gpucdi-sim return %s", arg, arg)
	}
	return simdriver.GPU{}, usagef("no GPU %q; gpucdi-sim list lists all GPUs", arg)
}

func (s sim) xid() *cobra.Command {
	return &cobra.Command{
		Use: "xid GPU XID", Short: "Raise an XID error, such as 79 or 48; the GPU still responds",
		Args: checkArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			const most = 65535
			xid, err := strconv.Atoi(args[1])
			if err != nil || xid < 1 || xid > most {
				return usagef("invalid XID %q, want a number from 1 to %d", args[1], most)
			}
			return s.onGPU(cmd, args[0], func(d *simdriver.Driver, g simdriver.GPU) (string, error) {
				return fmt.Sprintf("XID %d raised", xid), d.RaiseXID(g.UUID, xid)
			})
		},
	}
}

func (s sim) lose() *cobra.Command {
	return &cobra.Command{
		Use: "lose GPU", Short: "Make a GPU fall off the bus: XID 79, and every driver call about it fails",
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.onGPU(cmd, args[0], func(d *simdriver.Driver, g simdriver.GPU) (string, error) {
				return "lost", d.Lose(g.UUID)
			})
		},
	}
}

func (s sim) remove() *cobra.Command {
	return &cobra.Command{
		Use: "remove GPU", Short: "Remove a GPU from the machine, with its device node and PCI device",
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.onGPU(cmd, args[0], func(d *simdriver.Driver, g simdriver.GPU) (string, error) {
				// A fault must not refer to a missing GPU.
				err := d.Update(func(state *simdriver.State) error { clearFaults(state, g.UUID); return nil })
				if err != nil {
					return "", err
				}
				_, err = d.Remove(g.UUID)
				return "removed", err
			})
		},
	}
}

func (s sim) hang() *cobra.Command {
	return &cobra.Command{
		Use: "hang GPU", Short: "Make every driver call about a GPU hang",
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.onGPU(cmd, args[0], func(d *simdriver.Driver, g simdriver.GPU) (string, error) {
				return "driver calls hang", d.Update(func(state *simdriver.State) error {
					clearFaults(state, g.UUID)
					state.Faults = append(state.Faults, simdriver.Fault{GPU: g.UUID, Hang: hangs})
					return nil
				})
			})
		},
	}
}

func (s sim) returnGPU() *cobra.Command {
	return &cobra.Command{
		Use: "return GPU", Short: "Bring a lost, removed or hanging GPU back",
		Args: checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.onDriver(cmd, func(d *simdriver.Driver) (string, error) {
				g, err := findGPU(simdriver.State{GPUs: original.GPUs}, args[0])
				if err != nil {
					return "", err
				}
				if state := d.State(); state.GPU(g.UUID) == nil {
					err = d.Add(g)
				} else {
					err = d.Update(func(state *simdriver.State) error {
						clearFaults(state, g.UUID)
						state.GPU(g.UUID).Lost = false
						return nil
					})
				}
				return fmt.Sprintf("GPU %d (%s): returned", g.Minor, g.UUID), err
			})
		},
	}
}

func (s sim) mig() *cobra.Command {
	return &cobra.Command{
		Use: "mig GPU PROFILE[,PROFILE]...|off", Short: "Enable MIG mode and partition a GPU, or disable MIG mode",
		Example: "  gpucdi-sim mig 1 3g.40gb,3g.40gb\n  gpucdi-sim mig 1 off",
		Args:    checkArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.onGPU(cmd, args[0], func(d *simdriver.Driver, g simdriver.GPU) (string, error) {
				switch {
				case g.Lost:
					return "", errors.New("partitioning a GPU: it is lost; return it first")
				case args[1] == "off":
					return "MIG mode off", d.Unpartition(g.UUID)
				}
				return "MIG devices " + args[1], d.Partition(g.UUID, strings.Split(args[1], ",")...)
			})
		},
	}
}

// clearFaults removes the faults of a GPU.
func clearFaults(state *simdriver.State, uuid string) {
	state.Faults = slices.DeleteFunc(state.Faults, func(f simdriver.Fault) bool { return f.GPU == uuid })
}
